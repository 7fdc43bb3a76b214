package command_test

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	extcluster "github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// scanned adds an extension for each thing that a scan may find. Each decides by a key of
// its own name in the data of a ConfigMap.
func scanned(mgr *manager.Manager) error {
	const created, updated, deleted = admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete
	rules := func(group, resource string, operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{Operations: operations, Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource},
		}}}
	}
	configMaps := rules("", "configmaps", created, updated)
	says := func(name string, decide func(ctx context.Context, o *corev1.ConfigMap, req *extension.Request) error) any {
		return extension.ValidatingFunc(func(ctx context.Context, o *corev1.ConfigMap, req *extension.Request) error {
			if o.Data[name] == "" {
				return nil
			}
			return decide(ctx, o, req)
		}, extension.Scope{Name: name, Rules: configMaps})
	}
	never := func(context.Context, runtime.Object, *extension.Request) error { return extension.Deny("never") }
	for _, e := range []any{
		says("denied", func(_ context.Context, o *corev1.ConfigMap, _ *extension.Request) error {
			return extension.Deny(o.Data["denied"])
		}),
		says("fixed", func(_ context.Context, o *corev1.ConfigMap, req *extension.Request) error {
			if req.Operation == admissionv1.Update {
				return extension.Deny(o.Data["fixed"])
			}
			return nil
		}),
		says("panics", func(context.Context, *corev1.ConfigMap, *extension.Request) error { panic("no") }),
		says("users", func(_ context.Context, o *corev1.ConfigMap, req *extension.Request) error {
			if slices.Contains(req.User().Groups, "system:masters") {
				return nil
			}
			return extension.Deny(o.Data["users"])
		}),
		says("writes", func(ctx context.Context, o *corev1.ConfigMap, _ *extension.Request) error {
			written := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: "written"}}
			return mgr.GetKubeManager().GetClient().Create(ctx, written)
		}),
		extension.MutatingFunc(func(_ context.Context, o *corev1.ConfigMap, _ *extension.Request) error {
			if o.Data["stamp"] != "" {
				metav1.SetMetaDataLabel(&o.ObjectMeta, "stamp", "yes")
			}
			return nil
		}, extension.Scope{Name: "stamp", Rules: configMaps}),
		extension.ValidatingFunc(func(_ context.Context, o *autoscalingv1.HorizontalPodAutoscaler, req *extension.Request) error {
			return extension.Denyf("it has %d replicas, and %s is not its owner", o.Spec.MaxReplicas, req.User().Username)
		}, extension.Scope{Name: "old", Rules: rules("autoscaling", "horizontalpodautoscalers", created)}),
		extension.ValidatingFunc(never, extension.Scope{
			Name: "conditional", Rules: rules("autoscaling", "horizontalpodautoscalers", created),
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "even", Expression: "object.spec.maxReplicas % 2 == 0"}},
		}),
		extension.ValidatingFunc(never, extension.Scope{
			Name: "authorized", Rules: rules("autoscaling", "horizontalpodautoscalers", created),
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "may", Expression: "authorizer.group('').resource('pods').check('get').allowed()"}},
		}),
		extension.ValidatingFunc(never, extension.Scope{Name: "exec", Rules: extension.Connect("pods/exec")}),
		extension.ValidatingFunc(never, extension.Scope{Name: "deletion", Rules: rules("", "configmaps", deleted)}),
		extension.ValidatingFunc(never, extension.Scope{Name: "status", Rules: rules("", "pods/status", updated)}),
		extension.ValidatingFunc(never, extension.Scope{Name: "absent", Rules: rules("example.com", "kites", created)}),
	} {
		if err := mgr.AddExtension(e); err != nil {
			return err
		}
	}
	return nil
}

func TestAScanFindsWhatWouldBeRefusedOrChanged(t *testing.T) {
	t.Parallel()
	namespace, other := newNamespace(t), newNamespace(t)
	kube := testkit.Client(t, cluster.Admin(), nil)
	for _, in := range []string{namespace, namespace, other} {
		for _, key := range []string{"denied", "fixed", "panics", "users", "writes", "stamp", "fine"} {
			testkit.Create(t, kube, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: key + "-"}, Data: map[string]string{key: "because"}})
		}
	}
	testkit.Create(t, kube, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 3, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
	})
	of := func(args ...string) []string {
		return append([]string{"scan", "--kubeconfig=" + cluster.Admin().KubeConfig, "--namespace=" + namespace + "," + other}, args...)
	}

	t.Run("in a table for people", func(t *testing.T) {
		stdout, stderr, code := runBuilt(t, scanned, "", of("--mode=stamp=observe")...)
		if code != 1 || stderr != "3 denied, 6 stuck, 6 failed" {
			t.Errorf("%d: %s", code, stderr)
		}
		stdout = regexp.MustCompile(" +").ReplaceAllString(stdout, " ")
		for _, line := range []string{
			"denied Enforce " + other + " 7 1 1 0 0 0",
			"fixed Enforce " + namespace + " 14 0 2 0 0 0",
			"panics Enforce " + namespace + " 14 0 0 0 2 0",
			"stamp Observe " + namespace + " 14 0 0 2 0 0",
			"old Enforce " + namespace + " 1 0 0 0 0 0",
			" HorizontalPodAutoscaler " + namespace + "/web denied, by the user: it has 3 replicas",
			"stuck, denied: because",
			"changed: it would change metadata.labels",
			"POST /api/v1/namespaces/" + other + "/configmaps is not passed on",
			"exec: CONNECT of pods/exec: no stored object says who would ask for it, and when",
			"deletion: DELETE of configmaps: ", "status: pods/status: ", `absent: kites: the API server serves no such resource in group "example.com"`,
			"old, users: the decision depends on the user, here an administrator, and 1 findings are not counted for it",
			"authorized: horizontalpodautoscalers: only a cluster can evaluate its match condition",
		} {
			if !strings.Contains(stdout, line) {
				t.Errorf("no %q in %s", line, stdout)
			}
		}
	})
	t.Run("for the user who is named", func(t *testing.T) {
		stdout, stderr, _ := runBuilt(t, scanned, "", of("--user=alice")...)
		if stderr != "7 denied, 9 stuck, 6 failed" || strings.Contains(stdout, "depends on the user") {
			t.Errorf("%s: %s", stderr, stdout)
		}
	})
	t.Run("in the formats of pipelines", func(t *testing.T) {
		for format, findings := range map[string]func(text []byte) (int, error){
			"json": func(text []byte) (int, error) {
				var result struct{ Findings []any }
				err := json.Unmarshal(text, &result)
				return len(result.Findings), err
			},
			"sarif": func(text []byte) (int, error) {
				var log struct{ Runs []struct{ Results []any } }
				err := json.Unmarshal(text, &log)
				return len(log.Runs[0].Results), err
			},
			"junit": func(text []byte) (int, error) {
				err := xml.Unmarshal(text, new(struct {
					XMLName xml.Name `xml:"testsuites"`
				}))
				return strings.Count(string(text), "<failure ") + strings.Count(string(text), "<error ") + strings.Count(string(text), "<system-out>"), err
			},
		} {
			stdout, stderr, code := runBuilt(t, scanned, "", of("-o", format)...)
			if found, err := findings([]byte(stdout)); err != nil || found != 16 || code != 1 {
				t.Errorf("%s has %d findings: %v, %d: %s", format, found, err, code, stderr)
			}
		}
	})
	t.Run("as many as are wanted, and the rest is counted", func(t *testing.T) {
		stdout, stderr, _ := runBuilt(t, scanned, "", of("--findings=2")...)
		if !strings.Contains(stdout, "14 more findings are only counted") || stderr != "3 denied, 6 stuck, 6 failed" {
			t.Errorf("%s: %s", stderr, stdout)
		}
	})
	t.Run("as far as the user may read", func(t *testing.T) {
		nobody, err := cluster.AddUser("scanner-of-nothing")
		if err != nil {
			t.Fatal(err)
		}
		_, stderr, code := runBuilt(t, scanned, "", "scan", "--kubeconfig="+nobody.KubeConfig, "--namespace="+namespace)
		if code != 2 || !strings.Contains(stderr, "not everything could be scanned") || !strings.Contains(stderr, `configmaps in namespace `+namespace+`: configmaps is forbidden: User "scanner-of-nothing"`) {
			t.Errorf("%d: %s", code, stderr)
		}
	})
	t.Run("in namespaces that exist", func(t *testing.T) {
		_, stderr, code := runBuilt(t, scanned, "", "scan", "--kubeconfig="+cluster.Admin().KubeConfig, "--namespace=shpo")
		if code != 2 || !strings.Contains(stderr, "namespace shpo does not exist") {
			t.Errorf("%d: %s", code, stderr)
		}
	})
	if err := kube.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "written"}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("an extension has written: %v", err)
	}
}

// reportCRDs returns CustomResourceDefinitions of reports.
func reportCRDs(group, version, prefix string) string {
	const definition = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.GROUP, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: GROUP
  scope: SCOPE
  names: {kind: KIND, plural: PLURAL, singular: SINGULAR}
  versions: [{name: VERSION, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
	var all string
	for kind, scope := range map[string]string{prefix + "Report": "Namespaced", "Cluster" + prefix + "Report": "Cluster"} {
		all += strings.NewReplacer("GROUP", group, "SCOPE", scope, "KIND", kind, "PLURAL", strings.ToLower(kind)+"s", "SINGULAR", strings.ToLower(kind), "VERSION", version).Replace(definition)
	}
	return all
}

func apply(t *testing.T, manifest string) {
	t.Helper()
	if err := testkit.Apply(t.Context(), cluster, manifest); err != nil {
		t.Fatal(err)
	}
}

// reportOf returns the report of an object.
func reportOf(ctx context.Context, kube client.Client, apiVersion, kind, source string, object client.Object) (*unstructured.Unstructured, error) {
	report := &unstructured.Unstructured{}
	report.SetAPIVersion(apiVersion)
	report.SetKind(kind)
	return report, kube.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: source + "-scan-" + string(object.GetUID())}, report)
}

func TestReportsFollowWhatIsFound(t *testing.T) {
	t.Parallel()
	apply(t, reportCRDs("openreports.io", "v1alpha1", ""))
	namespace := newNamespace(t)
	kube := testkit.Client(t, cluster.Admin(), nil)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Data: map[string]string{"denied": "because"}}
	testkit.Create(t, kube, object)
	scan := func(want int) *unstructured.Unstructured {
		t.Helper()
		_, stderr, code := runBuilt(t, scanned, "", "scan", "--reports", "--kubeconfig="+cluster.Admin().KubeConfig, "--namespace="+namespace, "--fingerprint=follow")
		if code != want {
			t.Fatalf("%d: %s", code, stderr)
		}
		report, err := reportOf(t.Context(), kube, "openreports.io/v1alpha1", "Report", "follow", object)
		if client.IgnoreNotFound(err) != nil || want == 1 && err != nil || want == 0 && err == nil {
			t.Fatalf("after a scan: %v", err)
		}
		return report
	}
	first := scan(1)
	owner := first.GetOwnerReferences()
	if len(owner) != 1 || owner[0].UID != object.UID || owner[0].Kind != "ConfigMap" {
		t.Errorf("it does not belong to the object: %v", owner)
	}
	if text := fmt.Sprint(first.Object["results"], first.Object["summary"]); !strings.Contains(text, "message:because") || !strings.Contains(text, "result:fail") || !strings.Contains(text, "fail:1") {
		t.Errorf("it says %s", text)
	}
	if again := scan(1); again.GetResourceVersion() != first.GetResourceVersion() {
		t.Error("it is written although nothing has changed")
	}
	testkit.Change(t, kube, object, func(o *corev1.ConfigMap) { o.Data["denied"] = "another reason" })
	if changed := scan(1); !strings.Contains(fmt.Sprint(changed.Object["results"]), "another reason") {
		t.Errorf("it stays %v", changed.Object["results"])
	}
	another := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "another"}, Data: object.Data}
	testkit.Create(t, kube, another)
	if _, stderr, code := runBuilt(t, scanned, "", "scan", "--reports", "--findings=1", "--kubeconfig="+cluster.Admin().KubeConfig, "--namespace="+namespace, "--fingerprint=follow"); code != 1 ||
		!strings.Contains(stderr, "2 denied, 2 stuck") || !strings.Contains(stderr, "1 findings were only counted, and have no report: set more --findings") {
		t.Errorf("with fewer findings: %d: %s", code, stderr)
	}
	if _, err := reportOf(t.Context(), kube, "openreports.io/v1alpha1", "Report", "follow", object); err != nil {
		t.Errorf("a finding is counted, and its report gone: %v", err)
	}
	testkit.Change(t, kube, another, func(o *corev1.ConfigMap) { o.Data = nil })
	testkit.Change(t, kube, object, func(o *corev1.ConfigMap) { o.Data = nil })
	scan(0)
}

func TestAnObjectOfTheClusterIsExplained(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	kube := testkit.Client(t, cluster.Admin(), nil)
	testkit.Create(t, kube,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Data: map[string]string{"fixed": "because", "stamp": "yes"}})
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"what each extension would do, and why others are kept out": {[]string{"configmap", namespace + "/web"}, 0, []string{
			"CREATE of ConfigMap " + namespace + "/web: allowed, changed by 1 of 6 extensions\n# stamp, stamp: mutated\n",
			"# exec (exec) is not called: its rules name CONNECT of v1 pods/exec; this is CREATE of v1 configmaps\n",
			"UPDATE of ConfigMap " + namespace + "/web: denied\n", "# fixed, fixed: denied: because\n",
		}},
		"by a short name, as a user and in a mode": {[]string{"cm", namespace + "/web", "--user=alice", "--mode=fixed=warn"}, 0, []string{
			"UPDATE of ConfigMap " + namespace + "/web: allowed", "fixed: would deny this (Warn): because",
		}},
		"an object in no namespace":     {[]string{"ns", namespace}, 0, []string{"CREATE of Namespace " + namespace + ": allowed, no extension applies\n", "# stamp (stamp) is not called: "}},
		"an object that is not there":   {[]string{"configmap", namespace + "/none"}, 1, []string{`configmaps "none" not found`}},
		"a kind that is not there":      {[]string{"kite", "x"}, 1, []string{`"kite"`}},
		"no namespace where one is due": {[]string{"configmap", "web"}, 1, []string{"configmaps are in namespaces: name the object NAMESPACE/NAME"}},
		"a namespace where none is due": {[]string{"namespace", "a/b"}, 1, []string{"namespaces are in no namespace: name the object NAME"}},
		"no name":                       {[]string{"configmap"}, 2, []string{"KIND [NAMESPACE/]NAME"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := runBuilt(t, scanned, "", append([]string{"explain", "--kubeconfig=" + cluster.Admin().KubeConfig}, test.args...)...)
			if code != test.code {
				t.Errorf("%d: %s", code, stderr)
			}
			for _, want := range test.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("no %q in %s%s", want, stdout, stderr)
				}
			}
		})
	}
}

func TestAnObjectIsExplainedInTheVersionThatAnExtensionReceives(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	testkit.Create(t, testkit.Client(t, cluster.Admin(), nil), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 3, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
	})
	old := func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(func(_ context.Context, o *autoscalingv1.HorizontalPodAutoscaler, _ *extension.Request) error {
			return extension.Denyf("it has %d replicas", o.Spec.MaxReplicas)
		}, extension.Scope{Name: "old", Rules: extension.Resources("autoscaling", "v1", []string{"horizontalpodautoscalers"}, "CREATE")}))
	}
	stdout, stderr, code := runBuilt(t, old, "", "explain", "hpa", namespace+"/web", "--kubeconfig="+cluster.Admin().KubeConfig)
	if code != 0 || !strings.Contains(stdout, "# old, old: denied: it has 3 replicas") {
		t.Errorf("%d: %s%s", code, stdout, stderr)
	}
}

// keeper decides by a ConfigMap that it reads by a cache of its own, and declares what it
// reads by the manager's.
type keeper struct {
	own   ctrlcluster.Cluster
	reads []client.Object
}

func (k *keeper) Reads() []client.Object { return k.reads }

func (k *keeper) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}}}
}

func (k *keeper) Register(mgr extension.Manager) (err error) {
	k.own, err = extcluster.New(mgr, extcluster.Options{Name: "keeper"})
	return err
}

func (k *keeper) Validate(ctx context.Context, service *corev1.Service, _ *extension.Request) error {
	policy := &corev1.ConfigMap{}
	if err := k.own.GetClient().Get(ctx, client.ObjectKey{Namespace: service.Namespace, Name: "policy"}, policy); err != nil {
		return err
	}
	return extension.Deny(policy.Data["why"])
}

func TestAnExtensionReadsByACacheOfItsOwn(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	policy := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "policy"}, Data: map[string]string{"why": "the policy says so"}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	testkit.Create(t, testkit.Client(t, cluster.Admin(), nil), policy, service)
	built := func(reads ...client.Object) func(*manager.Manager) error {
		return func(mgr *manager.Manager) error {
			return mgr.AddExtension(extension.Validating(&keeper{reads: reads}, extension.Scope{Name: "keeper", Rules: extension.Resources("", "v1", []string{"services"}, "CREATE")}))
		}
	}
	on := []string{"--kubeconfig=" + cluster.Admin().KubeConfig, "--namespace=" + namespace}
	if stdout, stderr, code := runBuilt(t, built(), "", append(on, "scan", "--user=alice")...); code != 1 || !strings.Contains(stdout, "web denied: the policy says so") {
		t.Errorf("a scan: %d: %s%s", code, stdout, stderr)
	}
	if stdout, stderr, _ := runBuilt(t, built(), "", append(on, "explain", "service", namespace+"/web")...); !strings.Contains(stdout, "denied: the policy says so") {
		t.Errorf("an explanation: %s%s", stdout, stderr)
	}
	with := filepath.Join(t.TempDir(), "with.yaml")
	for path, object := range map[string]client.Object{with: policy, with + ".service.yaml": service} {
		object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(map[string]string{"policy": "ConfigMap", "web": "Service"}[object.GetName()]))
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if stdout, stderr, _ := runBuilt(t, built(), "", "review", "-f", with+".service.yaml", "--with", with); !strings.Contains(stdout, "the policy says so") {
		t.Errorf("a review: %s%s", stdout, stderr)
	}
	nobody, err := cluster.AddUser("scanner-without-reads")
	if err != nil {
		t.Fatal(err)
	}
	_, stderr, code := runBuilt(t, built(&corev1.ConfigMap{}), "", "scan", "--kubeconfig="+nobody.KubeConfig, "--namespace="+namespace)
	if code != 2 || !strings.Contains(stderr, "Reads of *command_test.keeper: ConfigMap: ") || !strings.Contains(stderr, "grant get, list and watch") {
		t.Errorf("without the right: %d: %s", code, stderr)
	}
}
