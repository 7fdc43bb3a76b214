package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// podsOf returns the Pods of every workload, by its name.
func podsOf(t *testing.T, values string) map[string]*corev1.PodTemplateSpec {
	t.Helper()
	pods := map[string]*corev1.PodTemplateSpec{}
	for _, object := range objectsOf(t, render(t, values)) {
		if pod := podOf(object); pod != nil {
			pods[object.GetName()] = pod
		}
	}
	return pods
}

const everyPod = `split: {enabled: true}, access: {enabled: true, namespaces: [apps]}, audit: {file: {enabled: true}}`

func TestEveryPodRunsOnLinuxAndWhereTheUserWants(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]map[string]string{
		``:                               {"kubernetes.io/os": "linux"},
		`, nodeSelector: {pool: system}`: {"kubernetes.io/os": "linux", "pool": "system"},
		`, nodeSelector: {kubernetes.io/os: null}`: nil,
	} {
		pods := podsOf(t, `{`+everyPod+values+`}`)
		if len(pods) != 5 {
			t.Errorf("%d workloads", len(pods))
		}
		for name, pod := range pods {
			if !maps.Equal(pod.Spec.NodeSelector, want) {
				t.Errorf("%s: %s has %v, want %v", values, name, pod.Spec.NodeSelector, want)
			}
		}
	}
}

// OpenShift assigns users and groups of its own to the Pods of a namespace.
func TestNullUnsetsAFieldOfASecurityContext(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		``:                                      `{"runAsNonRoot":true,"fsGroup":65532,"seccompProfile":{"type":"RuntimeDefault"}} {"capabilities":{"drop":["ALL"]},"readOnlyRootFilesystem":true,"allowPrivilegeEscalation":false}`,
		`, podSecurityContext: {fsGroup: null}`: `{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}} {"capabilities":{"drop":["ALL"]},"readOnlyRootFilesystem":true,"allowPrivilegeEscalation":false}`,
		`, podSecurityContext: {fsGroup: 7, seccompProfile: null}, securityContext: {runAsUser: 8, capabilities: null}`:                                                                        `{"runAsNonRoot":true,"fsGroup":7} {"runAsUser":8,"readOnlyRootFilesystem":true,"allowPrivilegeEscalation":false}`,
		`, podSecurityContext: {fsGroup: null, runAsNonRoot: null, seccompProfile: null}, securityContext: {allowPrivilegeEscalation: null, readOnlyRootFilesystem: null, capabilities: null}`: `null null`,
	} {
		pod := podsOf(t, `{`+everyPod+values+`}`)[release+"-admitkit"].Spec
		text := func(value any) string {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if got := text(pod.SecurityContext) + " " + text(pod.Containers[0].SecurityContext); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", values, got, want)
		}
	}
}

func TestOnlyServersAreInTheNetworkOfTheirNodes(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]corev1.DNSPolicy{
		``: "", `, hostNetwork: true`: corev1.DNSClusterFirstWithHostNet,
		`, hostNetwork: true, dnsPolicy: Default`: corev1.DNSDefault, `, dnsPolicy: Default`: corev1.DNSDefault,
	} {
		host := strings.Contains(values, "hostNetwork")
		for name, pod := range podsOf(t, `{`+everyPod+values+`}`) {
			server := name == release+"-admitkit"
			if pod.Spec.HostNetwork != (host && server) {
				t.Errorf("%s: %s: hostNetwork is %t", values, name, pod.Spec.HostNetwork)
			}
			if own := want; !server && own == corev1.DNSClusterFirstWithHostNet {
				if pod.Spec.DNSPolicy != "" {
					t.Errorf("%s: %s: dnsPolicy is %s", values, name, pod.Spec.DNSPolicy)
				}
			} else if pod.Spec.DNSPolicy != own {
				t.Errorf("%s: %s: dnsPolicy is %s, want %s", values, name, pod.Spec.DNSPolicy, own)
			}
		}
		// On as many nodes as there are servers a further one would find none whose ports are free.
		server := serverOf(objectsOf(t, render(t, `{`+everyPod+values+`}`))).(*appsv1.Deployment)
		if surge := server.Spec.Strategy.RollingUpdate.MaxSurge.IntValue(); (surge == 0) != host {
			t.Errorf("%s: maxSurge is %d", values, surge)
		}
	}
}

func TestEveryServiceHasTheIPFamiliesOfTheValues(t *testing.T) {
	t.Parallel()
	count := 0
	for _, object := range objectsOf(t, render(t, `{service: {ipFamilies: [IPv6, IPv4], ipFamilyPolicy: RequireDualStack}, metrics: {serviceMonitor: {enabled: true}}}`)) {
		service, ok := object.(*corev1.Service)
		if !ok {
			continue
		}
		count++
		if policy := service.Spec.IPFamilyPolicy; !slices.Equal(service.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}) || policy == nil || *policy != corev1.IPFamilyPolicyRequireDualStack {
			t.Errorf("%s has %v", service.Name, service.Spec.IPFamilies)
		}
	}
	if count != 2 {
		t.Errorf("%d Services", count)
	}
}

// Whoever names accounts changes who has the rights, and nothing else about them.
func TestServiceAccountsOfTheUserGetTheRightsOfThoseThatTheChartMakes(t *testing.T) {
	t.Parallel()
	const names = `, serviceAccount: {create: %s, name: web.hooks, registrarName: registrar, reconcilerName: grants, scannerName: scans}`
	for _, registrar := range []string{"Deployment", "Job"} {
		for _, create := range []string{"true", "false"} {
			values := `access: {enabled: true, namespaces: [apps]}, scan: {every: 1h}, split: {enabled: true, registrar: ` + registrar + `}`
			own := objectsOf(t, render(t, `{`+values+strings.ReplaceAll(names, "%s", create)+`}`))
			renamed := map[string]string{"": "web.hooks", "-registrar": "registrar", "-reconciler": "grants", "-scanner": "scans", "-unregister": "rel-admitkit-unregister", "-test": "rel-admitkit-test"}
			want, got := rightsOf(t, objectsOf(t, render(t, `{`+values+`}`))), rightsOf(t, own)
			for suffix, name := range renamed {
				if diff := cmp.Diff(want[release+"-admitkit"+suffix], got[name]); diff != "" || len(got[name]) == 0 {
					t.Errorf("%s: - by default, + with names: %s", name, diff)
				}
			}
			if len(got) != len(renamed) {
				t.Errorf("rights have %v", slices.Collect(maps.Keys(got)))
			}
			var made []string
			for _, object := range own {
				if _, ok := object.(*corev1.ServiceAccount); ok {
					made = append(made, object.GetName())
				}
				pod := podOf(object)
				if pod == nil {
					continue
				}
				if account := pod.Spec.ServiceAccountName; account != renamed[strings.TrimPrefix(object.GetName(), release+"-admitkit")] {
					t.Errorf("%s runs as %s", object.GetName(), account)
				}
				for _, arg := range pod.Spec.Containers[0].Args {
					if user, is := strings.CutPrefix(arg, "--reconciler-user="); is && user != "system:serviceaccount:rel-system:grants" {
						t.Errorf("%s takes %s for the reconciler", object.GetName(), user)
					}
				}
			}
			want2 := []string{"rel-admitkit-test", "rel-admitkit-unregister"}
			if create == "true" {
				want2 = append(want2, "grants", "registrar", "scans", "web.hooks")
			}
			slices.Sort(made)
			if slices.Sort(want2); !slices.Equal(made, want2) {
				t.Errorf("it makes %q, want %q", made, want2)
			}
		}
	}
}

func TestExtraObjectsAreTakenAsTheyAreAndTextIsATemplateOfTheRelease(t *testing.T) {
	t.Parallel()
	documents := render(t, `
watchNamespaces: [apps]
extraObjects:
- apiVersion: v1
  kind: ServiceAccount
  metadata: {name: a, namespace: apps, annotations: {summary: "{{ $labels.pod }} {{ .Release.Name }}"}}
- |
  {{- range list "b" "c" }}
  ---
  apiVersion: v1
  kind: ServiceAccount
  metadata: {name: {{ include "admitkit.fullname" $ }}-{{ . }}}
  {{- end }}
`)
	var names []string
	for _, object := range objectsOf(t, documents) {
		if account, ok := object.(*corev1.ServiceAccount); ok && !strings.Contains(strings.Join(slices.Collect(maps.Keys(account.Labels)), ""), "app.kubernetes.io") {
			names = append(names, account.Namespace+"/"+account.Name)
			if got, has := account.Annotations["summary"]; has && got != "{{ $labels.pod }} {{ .Release.Name }}" {
				t.Errorf("an object is changed: %s", got)
			}
		}
	}
	if want := []string{"apps/a", "/rel-admitkit-b", "/rel-admitkit-c"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

func TestWhatRegistersMayPatchTheDefinitionsThatAProgramConverts(t *testing.T) {
	t.Parallel()
	const values = `{image: {repository: example.com/x}, audit: {enabled: false}, rbac: {conversions: [alarms.example.com]}, split: {enabled: true}}`
	rights := rightsOf(t, objectsOf(t, render(t, values)))
	for account, want := range map[string]string{"": "", "-registrar": "get watch patch", "-test": "get", "-unregister": "get patch"} {
		var got []string
		for _, verb := range []string{"get", "watch", "patch", "update", "list"} {
			if rights[release+"-admitkit"+account]["everywhere: "+verb+" customresourcedefinitions.apiextensions.k8s.io alarms.example.com"] {
				got = append(got, verb)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s may %q, want %q", account, got, want)
		}
	}
}

func TestTheCRDsAndTheirPoliciesAloneAreKeptUnlessTheValuesSayOtherwise(t *testing.T) {
	t.Parallel()
	for name, values := range variants {
		keep := !strings.Contains(values, "crds: {keep: false}")
		for _, object := range objectsOf(t, render(t, values)) {
			_, crd := object.(*apiextensionsv1.CustomResourceDefinition)
			policy, has := object.GetAnnotations()["helm.sh/resource-policy"]
			if has != ((crd || isPolicy(object)) && keep) || has && policy != "keep" {
				t.Errorf("%s: %T %s: %q", name, object, object.GetName(), policy)
			}
		}
	}
	for values, want := range map[string]string{
		"": "", "crds: {keep: false}": "",
		"access: {enabled: true, namespaces: [apps]}":                                      "keeps the CRDs, and with them the access templates and requests.",
		"binding: {roles: [shop/deployer]}":                                                "keeps the CRDs, and with them the transient bindings.",
		"audit: {objects: {enabled: true}}":                                                "keeps the CRDs, and with them the AuditEvents.",
		"{access: {enabled: true, namespaces: [apps]}, audit: {objects: {enabled: true}}}": "the access templates and requests and the AuditEvents.",
		"{audit: {objects: {enabled: true}}, crds: {keep: false}}":                         "The uninstall deletes the AuditEvents",
		"{access: {enabled: true, namespaces: [apps]}, crds: {enabled: false}}":            "",
	} {
		notes := notesOf(t, values)
		if says := strings.Contains(notes, "keeps the CRDs") || strings.Contains(notes, "deletes the AuditEvents"); says != (want != "") || !strings.Contains(notes, want) {
			t.Errorf("%s: want %q: %s", values, want, notes)
		}
	}
}

// isPolicy reports whether an object is of operator/config/policy.
func isPolicy(object metav1.Object) bool {
	switch object.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		return strings.HasSuffix(object.GetName(), ".admitkit.dev")
	}
	return false
}

// A platform reads them, AKS for example.
func TestTheAnnotationsOfTheValuesReachTheWebhookConfigurations(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{})
	admin := testkit.Client(t, cluster.Admin(), testkit.Scheme())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: releaseNamespace}}
	testkit.Create(t, admin, namespace)
	want := map[string]string{"admissions.enforcer/disabled": "true", "example.com/list": "a, b", "example.com/pairs": "a=b, c=d", "example.com/none": ""}
	text, err := json.Marshal(map[string]any{"webhookAnnotations": want, "audit": map[string]any{"nodeProxy": false}, "split": map[string]any{"enabled": false}})
	if err != nil {
		t.Fatal(err)
	}
	i := &installed{T: t, cluster: cluster, name: release}
	pod := podsOf(t, string(text))[release+"-admitkit"].Spec
	pod.Containers[0].Args[0] = "register"
	var stays []string
	for _, document := range render(t, string(text)) {
		if strings.Contains(document, "\nkind: ") && !strings.Contains(document, "helm.sh/hook") {
			stays = append(stays, document)
		}
	}
	apply := cluster.Kubectl(t.Context(), nil, "apply", "--server-side", "--filename", "-")
	apply.Stdin = strings.NewReader(strings.Join(stays, "\n---\n"))
	if output, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	i.end(i.run(pod, "--advertise-host=127.0.0.1"))
	// What compares as Argo CD and Flux do finds no difference: nothing of the chart was changed.
	diff := cluster.Kubectl(t.Context(), nil, "diff", "--server-side", "--force-conflicts", "--filename", "-")
	diff.Stdin = strings.NewReader(strings.Join(stays, "\n---\n"))
	if output, err := diff.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
	for _, object := range []client.Object{kind("MutatingWebhookConfiguration"), kind("ValidatingWebhookConfiguration")} {
		if err := admin.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Name: "rel-admitkit." + releaseNamespace}, object); err != nil {
			t.Fatal(err)
		}
		got := object.GetAnnotations()
		maps.DeleteFunc(got, func(key, _ string) bool { return strings.HasPrefix(key, "admitkit.dev/") })
		if !maps.Equal(got, want) {
			t.Errorf("%T has %q, want %q", object, got, want)
		}
	}
}

// kind is an object of a kind of admission.
func kind(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: name}}
}
