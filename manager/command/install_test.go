package command_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	previewv1 "github.com/admitkit/admitkit/examples/preview/v1"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

const chassisCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: chassis.example.com}
spec:
  group: example.com
  names: {kind: Chassis, plural: chassis}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

const settings = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: high}
`

// writeFile writes a file, and returns its path.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "own.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnAuthorsOwnObjectsArePartOfTheInstallation(t *testing.T) {
	file := writeFile(t, settings+"---"+chassisCRD)
	cmd := command.New("stamp", build, command.WithInstallOptions(func(o *manager.InstallOptions) {
		o.Objects = append(o.Objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Namespace: "apps"}})
	}))
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system", "--with=" + file})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	var kinds []string
	for document := range strings.SplitSeq(text, "---\n") {
		if _, kind, found := strings.Cut(document, "\nkind: "); found {
			kind, _, _ = strings.Cut(kind, "\n")
			kinds = append(kinds, kind)
		}
	}
	if want := []string{"CustomResourceDefinition", "Namespace", "ConfigMap", "Secret", "ServiceAccount"}; len(kinds) < 5 || !slices.Equal(kinds[:5], want) {
		t.Errorf("got %q, want first %q", kinds, want)
	}
	if own := object[corev1.ConfigMap](t, text, "ConfigMap", "settings"); own.Namespace != "my-system" || own.Data["level"] != "high" {
		t.Errorf("got %+v", own)
	}
	if own := object[corev1.Secret](t, text, "Secret", "token"); own.Namespace != "apps" {
		t.Errorf("got %+v", own)
	}
	if strings.Contains(text, "--with") {
		t.Error("the processes get the flag --with, which only manifests has")
	}
}

func TestAnAuthorsNamespaceReplacesTheOneThatIsMade(t *testing.T) {
	file := writeFile(t, "{apiVersion: v1, kind: Namespace, metadata: {name: my-system, labels: {team: a}}}")
	text := manifestsOf(t, build, "--namespace=apps", "--webhook-namespace=my-system", "--with="+file)
	if own := object[corev1.Namespace](t, text, "Namespace", "my-system"); own.Labels["team"] != "a" || strings.Count(text, "kind: Namespace\n") != 1 {
		t.Errorf("got\n%s", text)
	}
}

// podsOf returns the Pods of the three Deployments.
func podsOf(t *testing.T, text string) map[string]corev1.PodSpec {
	t.Helper()
	pods := map[string]corev1.PodSpec{}
	for _, name := range []string{"stamp", "stamp-registrar", "stamp-reconciler"} {
		pods[name] = object[appsv1.Deployment](t, text, "Deployment", name).Spec.Template.Spec
	}
	return pods
}

func TestEachContainerHasRequestsAndLimits(t *testing.T) {
	memory, cpu := corev1.ResourceMemory, corev1.ResourceCPU
	for name, test := range map[string]struct {
		args []string
		want string // requests and limits
	}{
		"by default":     {nil, "50m 64Mi 0 256Mi"},
		"those given":    {[]string{"--requests=memory=1Gi", "--limits=cpu=1,memory=2Gi"}, "0 1Gi 1 2Gi"},
		"limits alone":   {[]string{"--limits=memory=1Gi"}, "50m 64Mi 0 1Gi"},
		"none, as asked": {[]string{"--requests=", "--limits="}, "0 0 0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			text := manifestsOf(t, buildAll, append(test.args, "--namespace=apps", "--webhook-namespace=my-system")...)
			for name, pod := range podsOf(t, text) {
				r := pod.Containers[0].Resources
				got := strings.Join([]string{quantity(r.Requests, cpu), quantity(r.Requests, memory), quantity(r.Limits, cpu), quantity(r.Limits, memory)}, " ")
				if got != test.want {
					t.Errorf("%s has %s, want %s", name, got, test.want)
				}
			}
		})
	}
}

func quantity(list corev1.ResourceList, name corev1.ResourceName) string {
	q := list[name]
	return q.String()
}

func TestEveryPodPullsWithTheSecretsThatAreNamed(t *testing.T) {
	text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system", "--image-pull-secrets=registry,mirror")
	for name, pod := range podsOf(t, text) {
		if want := []corev1.LocalObjectReference{{Name: "registry"}, {Name: "mirror"}}; !slices.Equal(pod.ImagePullSecrets, want) {
			t.Errorf("%s pulls with %v", name, pod.ImagePullSecrets)
		}
	}
}

func TestTheNetworkPolicyAdmitsTheAPIServersToTheWebhooksAndNobodyToOtherPorts(t *testing.T) {
	text := manifestsOf(t, buildAll, "--namespace=apps", "--webhook-namespace=my-system", "--api-servers=10.0.0.10,10.1.2.3/24,fd00::1", "--metrics-service", "--candidate=x")
	policy := object[networkingv1.NetworkPolicy](t, text, "NetworkPolicy", "stamp")
	service := object[corev1.Service](t, text, "Service", "stamp-metrics")
	for _, name := range []string{"stamp", "stamp-registrar", "stamp-reconciler", "stamp-candidate"} {
		labels := object[appsv1.Deployment](t, text, "Deployment", name).Spec.Template.Labels
		for key, value := range policy.Spec.PodSelector.MatchLabels {
			if labels[key] != value || service.Spec.Selector[key] != value {
				t.Errorf("the NetworkPolicy or the metrics' Service does not select %s", name)
			}
		}
	}
	from := map[string][]string{}
	for _, rule := range policy.Spec.Ingress {
		from[rule.Ports[0].Port.StrVal] = []string{}
		for _, peer := range rule.From {
			if peer.IPBlock == nil { // the servers call the candidate
				peer.IPBlock = &networkingv1.IPBlock{CIDR: metav1.FormatLabelSelector(peer.PodSelector)}
			}
			from[rule.Ports[0].Port.StrVal] = append(from[rule.Ports[0].Port.StrVal], peer.IPBlock.CIDR)
		}
	}
	if got := strings.Join(from["webhook"], " "); len(from) != 3 || got != "10.0.0.10/32 10.1.2.0/24 fd00::1/128 app.kubernetes.io/part-of=stamp" || len(from["health"])+len(from["metrics"]) > 0 || from["metrics"] == nil {
		t.Errorf("got %v", from)
	}
}

func TestWhatIsWrongWithAnInstallationNamesTheFlagOrTheField(t *testing.T) {
	for name, test := range map[string]struct {
		own  string
		args []string
		want string
	}{
		"a request beyond the limit":        {"", []string{"--limits=memory=32Mi"}, "Resources: the request for memory, 64Mi, is more than its limit, 32Mi"},
		"a quantity that is none":           {"", []string{"--limits=memory=much"}, `--limits: "memory=much"`},
		"addresses without the policy":      {"", []string{"--api-servers=10.0.0.1", "--network-policy=false"}, "--network-policy"},
		"an address that is none":           {"", []string{"--network-policy", "--api-servers=master"}, `--api-servers: "master"`},
		"a pull secret with a bad name":     {"", []string{"--image-pull-secrets=A_B"}, "--image-pull-secrets"},
		"a metrics Service without metrics": {"", []string{"--metrics-service", "--metrics-address="}, "--metrics-service: --metrics-address has no port"},
		"a candidate that nobody can call":  {"", []string{"--candidate=x", "--record=/recordings"}, "--candidate: leave out"},
		"an own object that is there":       {"{apiVersion: v1, kind: ServiceAccount, metadata: {name: stamp}}", nil, "ServiceAccount my-system/stamp: the installation has it already"},
		"an own object without a name":      {"{apiVersion: v1, kind: ConfigMap, metadata: {generateName: x}}", nil, "the ConfigMap needs a name"},
		"a CRD that defines nothing":        {"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x}}", nil, "CustomResourceDefinition x: needs"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system"}, test.args...)
			if test.own != "" {
				args = append(args, "--with=-")
			}
			cmd := command.New("stamp", build)
			var out bytes.Buffer
			cmd.SetIn(strings.NewReader(test.own))
			cmd.SetOut(&out)
			cmd.SetArgs(args)
			err := cmd.ExecuteContext(t.Context())
			if command.ExitCode(err) != 2 || !strings.Contains(err.Error(), test.want) || out.Len() > 0 {
				t.Errorf("got %v, want an error that says %q\n%s", err, test.want, out.String())
			}
		})
	}
}

func TestAnAPIServerTakesEveryObjectOfAnInstallation(t *testing.T) {
	text := manifestsOf(t, buildAll, "--namespace=default", "--webhook-namespace=whole-system", "--with="+writeFile(t, settings+"---"+chassisCRD),
		"--image-pull-secrets=registry", "--metrics-service", "--network-policy", "--api-servers=10.0.0.10", "--limits=memory=1Gi")
	kubectl := cluster.Kubectl(t.Context(), nil, "apply", "-f", "-")
	kubectl.Stdin = strings.NewReader(text)
	output, err := kubectl.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	for _, want := range []string{
		"customresourcedefinition.apiextensions.k8s.io/chassis.example.com created", "configmap/settings created",
		"networkpolicy.networking.k8s.io/stamp created", "service/stamp-metrics created", "deployment.apps/stamp-reconciler created",
	} {
		if !strings.Contains(string(output), want) {
			t.Errorf("there is no %q in\n%s", want, output)
		}
	}
}

func TestAReviewKnowsTheKindsOfTheInstallationsOwnObjects(t *testing.T) {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "chassis.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Cluster", "names": map[string]any{"kind": "Chassis", "plural": "chassis"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
		},
	}}
	cmd := command.New("reviewed", reviewed, command.WithInstallOptions(func(o *manager.InstallOptions) { o.Objects = []client.Object{crd} }))
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader("{apiVersion: example.com/v1, kind: Chassis, metadata: {name: one}}"))
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"review", "-f", "-"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), "Chassis one: ") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestAVersionThatNobodyConvertsIsToldBeforeTheInstallation(t *testing.T) {
	same := func(*unstructured.Unstructured, *unstructured.Unstructured) error { return nil }
	for hub, warns := range map[string]bool{"v2": false, "v3": true} {
		build := func(mgr *manager.Manager) error {
			return mgr.AddExtension(extension.Converting("alarms.alarm.example.com", hub, extension.Between("v1", same, same)))
		}
		_, stderr, code := runBuilt(t, build, "", "manifests", "--image=x", "--service-name=alarm", "--webhook-namespace=my-system", "--with=../../examples/alarm/crd")
		const want = "CustomResourceDefinition alarms.alarm.example.com serves version v2, and its Converter has only v3, v1: requests for that version fail"
		if code != 0 || strings.Contains(stderr, want) != warns {
			t.Errorf("%s: exit code %d: %s", hub, code, stderr)
		}
	}
}

// typed reads a kind of its author's scheme.
type typed struct{}

func (typed) Reads() []client.Object { return []client.Object{&previewv1.PreviewEnvironment{}} }

func (typed) Mutate(context.Context, *corev1.Pod, *extension.Request) error {
	return nil
}

func TestTheTypesOfTheAuthorsSchemeAreKnownWithoutACluster(t *testing.T) {
	add := func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.Mutating(typed{}, extension.Scope{}))
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(previewv1.GroupVersion, &previewv1.PreviewEnvironment{}, &previewv1.PreviewEnvironmentList{})
	metav1.AddToGroupVersion(scheme, previewv1.GroupVersion)
	withScheme := command.WithOptions(func(o *manager.Options) { o.Scheme = scheme })
	for _, args := range [][]string{
		{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system", "--with=../../examples/preview/crd/preview.example.com_previewenvironments.yaml"},
		{"review", "--with=../../examples/preview/crd/preview.example.com_previewenvironments.yaml", "-f", "-"},
	} {
		cmd := command.New("stamp", add, withScheme)
		var out bytes.Buffer
		cmd.SetIn(strings.NewReader("{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: web, image: web}]}}"))
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", args[0], err)
		}
		if args[0] == "manifests" && !strings.Contains(out.String(), "- previewenvironments\n  verbs:\n  - get\n  - list\n  - watch\n") {
			t.Errorf("no right to read them:\n%s", out.String())
		}
	}
}

func TestTheHelpOfReviewListsOnlyWhatConcernsIt(t *testing.T) {
	cmd := command.New("stamp", build)
	cmd.PersistentFlags().String("mine", "", "a flag of the author's")
	help := func(args ...string) string {
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	text := help("review", "--help")
	for _, flag := range []string{"--filename", "--with", "--namespace ", "--failure-policy", "--mine", "--zap-log-level"} {
		if !strings.Contains(text, flag) {
			t.Errorf("the help does not list %s", flag)
		}
	}
	for _, flag := range []string{"--drain-period", "--ca-lifetime", "--metrics-address", "--kubeconfig", "--watcher-queue-length", "--max-in-flight"} {
		if strings.Contains(text, flag) {
			t.Errorf("the help lists %s, which changes nothing in a review", flag)
		}
	}
	if text := help("serve", "--help"); !strings.Contains(text, "--drain-period") {
		t.Error("the help of serve no longer lists --drain-period")
	}
}
