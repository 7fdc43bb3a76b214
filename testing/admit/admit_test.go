package admit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/testing/admit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mutator returns a Handler for a function on Pods.
func mutator(mutate func(*corev1.Pod, *extension.Request) error, scope extension.Scope) *extension.Handler {
	return extension.Mutating(extension.MutatorFunc[*corev1.Pod](
		func(_ context.Context, pod *corev1.Pod, req *extension.Request) error { return mutate(pod, req) }), scope)
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
}

var owner = mutator(func(pod *corev1.Pod, req *extension.Request) error {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "owner", req.User().Username)
	req.Warnf("owned by %s", req.User().Username)
	req.AddAuditAnnotation("owner", req.User().Username)
	return nil
}, extension.Scope{Name: "owner"})

func TestAPodComesBackAsTheExtensionsMadeIt(t *testing.T) {
	result := admit.New(t, owner).As("alice", "developers").Create(pod("web"))
	if !result.Allowed || result.Pod().Annotations["owner"] != "alice" || result.Pod().Namespace != admit.DefaultNamespace {
		t.Errorf("%+v", result)
	}
	if !strings.Contains(result.Diff, "+  annotations:\n+    owner: alice\n") {
		t.Errorf("got the diff %s", result.Diff)
	}
	if !slices.Equal(result.Warnings, []string{"owned by alice"}) || len(result.AuditAnnotations) != 1 {
		t.Errorf("%q, %v", result.Warnings, result.AuditAnnotations)
	}
}

// suffix is an Extension, which makes its own patch.
type suffix struct{}

func (suffix) Handle(_ context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "seen", pod.Annotations["owner"])
	return mgr.PatchFromPod(req, pod)
}

func TestEachExtensionSeesWhatTheOnesBeforeItDid(t *testing.T) {
	unnamed := mutator(func(pod *corev1.Pod, req *extension.Request) error {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "owner", req.User().Username)
		return nil
	}, extension.Scope{})
	required := extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		if pod.Annotations["seen"] != "alice" {
			return extension.Denyf("seen is %q", pod.Annotations["seen"])
		}
		return nil
	}), extension.Scope{})
	result := admit.New(t, required, unnamed, suffix{}).As("alice").Create(pod("web"))
	if !result.Allowed || len(result.Called) != 3 || result.Called[1] != "admit_test.suffix" {
		t.Errorf("%+v", result)
	}
}

func TestADenialAndAFailureAreToldApart(t *testing.T) {
	ignore := admissionregistrationv1.Ignore
	boom := errors.New("boom")
	fails := func(*corev1.Pod, *extension.Request) error { return boom }
	for name, test := range map[string]struct {
		extension *extension.Handler
		allowed   bool
		reason    string
		failed    bool
	}{
		"a denial":                     {mutator(func(*corev1.Pod, *extension.Request) error { return extension.Deny("not today") }, extension.Scope{}), false, "not today", false},
		"an error":                     {mutator(fails, extension.Scope{Name: "x"}), false, "webhook x failed, and its failure policy is Fail: extension extension.MutatorFunc: boom", true},
		"an error that does not count": {mutator(fails, extension.Scope{FailurePolicy: &ignore}), true, "", true},
		"a panic":                      {mutator(func(*corev1.Pod, *extension.Request) error { panic("boom") }, extension.Scope{FailurePolicy: &ignore}), true, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			result := admit.New(t, test.extension).Create(pod("web"))
			if result.Allowed != test.allowed || result.Reason != test.reason || (result.Err != nil) != test.failed {
				t.Errorf("%+v", result)
			}
		})
	}
}

func TestTheScopeDecidesWhoIsCalled(t *testing.T) {
	scoped := func(scope extension.Scope) *extension.Handler {
		return mutator(func(*corev1.Pod, *extension.Request) error { return nil }, scope)
	}
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	labelled := pod("labelled")
	labelled.Labels = map[string]string{"team": "a"}
	for name, test := range map[string]struct {
		scope  extension.Scope
		ask    func(*admit.Client) *admit.Result
		called bool
	}{
		"a Pod":                            {extension.Scope{}, func(c *admit.Client) *admit.Result { return c.Create(pod("web")) }, true},
		"an update of a Pod":               {extension.Scope{}, func(c *admit.Client) *admit.Result { return c.Update(pod("web"), pod("web")) }, false},
		"an update, asked for":             {extension.Scope{Rules: extension.Pods(admissionregistrationv1.Update)}, func(c *admit.Client) *admit.Result { return c.Update(pod("web"), pod("web")) }, true},
		"a namespace without the label":    {extension.Scope{NamespaceSelector: team}, func(c *admit.Client) *admit.Result { return c.Create(pod("web")) }, false},
		"a namespace with the label":       {extension.Scope{NamespaceSelector: team}, func(c *admit.Client) *admit.Result { return c.In("apps", team.MatchLabels).Create(pod("web")) }, true},
		"a Pod without the label":          {extension.Scope{ObjectSelector: team}, func(c *admit.Client) *admit.Result { return c.Create(pod("web")) }, false},
		"a Pod with the label":             {extension.Scope{ObjectSelector: team}, func(c *admit.Client) *admit.Result { return c.Create(labelled) }, true},
		"a Pod that loses the label":       {extension.Scope{ObjectSelector: team, Rules: extension.Pods("*")}, func(c *admit.Client) *admit.Result { p := pod("labelled"); return c.Update(labelled, p) }, true},
		"any resource, but no subresource": {extension.Scope{Rules: extension.Resources("*", "*", []string{"*"}, "*")}, func(c *admit.Client) *admit.Result { return c.Connect("web", &corev1.PodAttachOptions{}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if result := test.ask(admit.New(t, scoped(test.scope))); (len(result.Called) > 0) != test.called {
				t.Errorf("called: %v", result.Called)
			}
		})
	}
}

func TestAConnectionCarriesItsOptions(t *testing.T) {
	noShell := extension.Validating(extension.ValidatorFunc[*corev1.PodExecOptions](
		func(_ context.Context, options *corev1.PodExecOptions, req *extension.Request) error {
			return extension.Denyf("%s may not run %v in %s/%s by %s", req.User().Username, options.Command, req.Namespace, req.Name, req.SubResource)
		}), extension.Scope{Rules: extension.Connect("pods/exec")})
	result := admit.New(t, noShell).As("mallory").In("apps", nil).Connect("web", &corev1.PodExecOptions{Command: []string{"sh"}})
	if want := "mallory may not run [sh] in apps/web by exec"; result.Reason != want {
		t.Errorf("%+v", result)
	}
}

func TestADeletionShowsTheObjectThatGoes(t *testing.T) {
	keep := extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		return extension.Denyf("%s of %s by %s", req.Operation, pod.Name, req.User().Groups[0])
	}), extension.Scope{Rules: extension.Pods(admissionregistrationv1.Delete)})
	if result := admit.New(t, keep).As("bob", "ops").Delete(pod("web")); result.Reason != "DELETE of web by ops" {
		t.Errorf("%+v", result)
	}
}

func TestObjectsOfOtherKindsKeepTheirType(t *testing.T) {
	replicas := extension.Mutating(extension.MutatorFunc[*appsv1.Deployment](func(_ context.Context, d *appsv1.Deployment, _ *extension.Request) error {
		d.Spec.Replicas = new(int32(3))
		return nil
	}), extension.Scope{Rules: extension.Resources("apps", "v1", []string{"deployments"}, "*")})
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	if result := admit.New(t, replicas).Update(deployment, deployment); *result.Object.(*appsv1.Deployment).Spec.Replicas != 3 {
		t.Errorf("%+v", result)
	}
	size := extension.Mutating(extension.MutatorFunc[*unstructured.Unstructured](func(_ context.Context, u *unstructured.Unstructured, _ *extension.Request) error {
		return unstructured.SetNestedField(u.Object, int64(1)<<60, "spec", "size")
	}), extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"widgets"}, "*")})
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}}
	result := admit.New(t, size).Create(widget)
	if got, _, _ := unstructured.NestedInt64(result.Object.(*unstructured.Unstructured).Object, "spec", "size"); got != 1<<60 {
		t.Errorf("%+v", result)
	}
}

// keys creates a Secret for each Pod. If heedsDryRun is set, a dry run creates none.
type keys struct {
	heedsDryRun bool
	kube        client.Client
	mgr         extension.Manager
}

func (k *keys) Register(mgr extension.Manager) error {
	k.mgr, k.kube = mgr, mgr.GetKubeManager().GetClient()
	return nil
}

func (k *keys) Mutate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "key", pod.Name)
	if req.DryRun() && k.heedsDryRun {
		return nil
	}
	err := k.kube.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
	return client.IgnoreAlreadyExists(err)
}

func TestAnExtensionFindsACluster(t *testing.T) {
	noneOnDryRun := admissionregistrationv1.SideEffectClassNoneOnDryRun
	chain := admit.New(t, extension.Mutating(&keys{heedsDryRun: true}, extension.Scope{SideEffects: &noneOnDryRun})).
		With(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}})
	if result := chain.Create(pod("web")); !result.Allowed || result.Err != nil {
		t.Fatalf("%+v", result)
	}
	core, err := chain.Manager().GetKubeClient()
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := core.Secrets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 2 {
		t.Errorf("%v, %v", secrets, err)
	}
	if result := chain.DryRun().Create(pod("dry")); !result.Allowed || result.Pod().Annotations["key"] != "dry" {
		t.Errorf("%+v", result)
	}
	if _, err := core.Secrets("default").Get(t.Context(), "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run created a Secret: %v", err)
	}
	if err := core.Secrets("default").Delete(t.Context(), "other", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	patched, err := core.Secrets("default").Patch(t.Context(), "web", "application/merge-patch+json", []byte(`{"stringData":{"a":"b"}}`), metav1.PatchOptions{})
	if err != nil || patched.StringData["a"] != "b" {
		t.Errorf("%v, %v", patched, err)
	}
}

// verdict is a test that records errors instead of failing.
type verdict struct {
	testing.TB
	errors []string
}

func (v *verdict) Helper() {}

func (v *verdict) Errorf(format string, args ...any) {
	v.errors = append(v.errors, fmt.Sprintf(format, args...))
}

func TestWhatKubernetesForbidsFailsTheTest(t *testing.T) {
	noneOnDryRun := admissionregistrationv1.SideEffectClassNoneOnDryRun
	onUpdate := extension.Scope{Rules: extension.Pods(admissionregistrationv1.Update)}
	update := func(c *admit.Client) { c.Update(pod("web"), pod("web")) }
	create := func(c *admit.Client) { c.Create(pod("web")) }
	for name, test := range map[string]struct {
		extension any
		ask       func(*admit.Client)
		want      string
	}{
		"a sidecar that is added again": {mutator(func(pod *corev1.Pod, _ *extension.Request) error {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("sidecar-", len(pod.Spec.Containers)), Image: "x"})
			return nil
		}, extension.Scope{}), create, "is not idempotent"},
		"a denial of its own work": {mutator(func(pod *corev1.Pod, _ *extension.Request) error {
			if pod.Labels["a"] != "" {
				return extension.Deny("has a label")
			}
			pod.Labels = map[string]string{"a": "b"}
			return nil
		}, extension.Scope{}), create, "denies, when it is called again"},
		"an undeclared Secret":         {extension.Mutating(&keys{heedsDryRun: true}, extension.Scope{}), create, "POST /api/v1/namespaces/default/secrets"},
		"a Secret on a dry run":        {extension.Mutating(&keys{}, extension.Scope{SideEffects: &noneOnDryRun}), create, "has side effects on a dry run"},
		"another name":                 {mutator(func(pod *corev1.Pod, _ *extension.Request) error { pod.Name = "mine"; return nil }, extension.Scope{}), create, `metadata.name: "web" -> "mine"`},
		"another namespace, on UPDATE": {mutator(func(pod *corev1.Pod, _ *extension.Request) error { pod.Namespace = "mine"; return nil }, onUpdate), update, "metadata.namespace"},
		"an environment, on UPDATE": {mutator(func(pod *corev1.Pod, _ *extension.Request) error {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A"}}
			return nil
		}, onUpdate), update, "spec.containers.0.env"},
		"a container more, on UPDATE": {mutator(func(pod *corev1.Pod, _ *extension.Request) error {
			pod.Spec.Containers = append(pod.Spec.Containers[:1:1], corev1.Container{Name: "b"})
			return nil
		}, onUpdate), update, "spec.containers"},
		"a field that Pods do not have": {misspelt{}, create, `unknown field "spec.dnsPolcy"`},
	} {
		t.Run(name, func(t *testing.T) {
			v := &verdict{TB: t}
			test.ask(admit.New(v, test.extension))
			if len(v.errors) != 1 || !strings.Contains(v.errors[0], test.want) {
				t.Errorf("got the errors %q, want one with %q", v.errors, test.want)
			}
		})
	}
}

// misspelt is an Extension whose hand-made patch has a misspelt field.
type misspelt struct{}

func (misspelt) Handle(context.Context, extension.Manager, *corev1.Pod, admission.Request) admission.Response {
	response := admission.Allowed("")
	response.PatchType, response.Patch = new(admissionv1.PatchTypeJSONPatch), []byte(`[{"op":"add","path":"/spec/dnsPolcy","value":"Default"}]`)
	return response
}

func TestWhatKubernetesAllowsOnAnUpdateIsNoBreach(t *testing.T) {
	image := mutator(func(pod *corev1.Pod, _ *extension.Request) error {
		pod.Spec.Containers[0].Image = "example.com/main:2"
		pod.Labels = map[string]string{"a": "b"}
		return nil
	}, extension.Scope{Rules: extension.Pods(admissionregistrationv1.Update)})
	if result := admit.New(t, image).Update(pod("web"), pod("web")); result.Pod().Spec.Containers[0].Image != "example.com/main:2" {
		t.Errorf("%+v", result)
	}
}

func TestAWebhookThatAsksForItIsReinvoked(t *testing.T) {
	ifNeeded := admissionregistrationv1.IfNeededReinvocationPolicy
	count := mutator(func(pod *corev1.Pod, _ *extension.Request) error {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "containers", fmt.Sprint(len(pod.Spec.Containers)))
		return nil
	}, extension.Scope{Name: "count", ReinvocationPolicy: &ifNeeded})
	sidecar := mutator(func(pod *corev1.Pod, _ *extension.Request) error {
		if len(pod.Spec.Containers) == 1 {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "sidecar"})
		}
		return nil
	}, extension.Scope{Name: "sidecar"})
	result := admit.New(t, count, sidecar).Create(pod("web"))
	if result.Pod().Annotations["containers"] != "2" || len(result.Called) != 3 {
		t.Errorf("%+v", result)
	}
}

// ended returns what a request said when it ended its test.
func ended(t *testing.T, extensions any, ask func(*admit.Client)) (said string) {
	defer func() {
		if reason := recover(); reason != nil {
			said = fmt.Sprint(reason)
		}
	}()
	ask(admit.New(fatal{t}, extensions))
	return ""
}

func TestWhatOnlyAClusterKnowsEndsTheTestUntilItIsGiven(t *testing.T) {
	called := func(c *admit.Client, object *unstructured.Unstructured) int { return len(c.Create(object).Called) }
	of := func(apiVersion, kind string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": "x"}}}
	}
	crd := of("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	crd.Object["spec"] = map[string]any{
		"group": "example.com", "scope": "Cluster", "names": map[string]any{"kind": "Gateway", "plural": "gateways"},
		"versions": []any{map[string]any{"name": "v1", "served": true}},
	}
	for name, test := range map[string]struct {
		scope  extension.Scope
		object *unstructured.Unstructured
		remedy string
		give   func(*admit.Client) *admit.Client
		called int
	}{
		"a match condition that holds": {
			extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "request.name == 'x'"}}},
			of("v1", "Pod"),
			"mine (request.name == 'x'): say what they evaluate to by MatchConditions",
			func(c *admit.Client) *admit.Client { return c.MatchConditions(map[string]bool{"mine": true}) }, 1,
		},
		"a match condition that does not hold": {
			extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "false"}}},
			of("v1", "Pod"),
			"say what they evaluate to by MatchConditions",
			func(c *admit.Client) *admit.Client { return c.MatchConditions(map[string]bool{"mine": false}) }, 0,
		},
		"the plural of a custom kind": {
			extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gateways"}, "*")},
			of("example.com/v1", "Gateway"),
			"the kind Gateway.example.com is not one of Kubernetes, so its resource and scope are unknown (a guess: gatewaies, with a namespace): " +
				"add its CustomResourceDefinition by With",
			func(c *admit.Client) *admit.Client { return c.With(crd) }, 1,
		},
		"another version": {
			extension.Scope{Rules: extension.Resources("autoscaling", "v1", []string{"horizontalpodautoscalers"}, "*")},
			of("autoscaling/v2", "HorizontalPodAutoscaler"),
			"send the object in a version that the rules name, or name this one, too", nil, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := extension.Validating(extension.ValidatorFunc[*unstructured.Unstructured](
				func(context.Context, *unstructured.Unstructured, *extension.Request) error { return nil }), test.scope)
			if said := ended(t, x, func(c *admit.Client) { called(c, test.object) }); !strings.Contains(said, test.remedy) {
				t.Errorf("it says %q, want %q", said, test.remedy)
			}
			if test.give == nil {
				return
			}
			if got := called(test.give(admit.New(t, x)), test.object); got != test.called {
				t.Errorf("called %d times, want %d", got, test.called)
			}
		})
	}
}

func TestTheLabelsOfANamespaceAreThoseOfTheCluster(t *testing.T) {
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	client := admit.New(t, mutator(func(*corev1.Pod, *extension.Request) error { return nil }, extension.Scope{NamespaceSelector: team})).
		With(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: team.MatchLabels}})
	for name, test := range map[string]struct {
		client *admit.Client
		called int
	}{
		"of the Namespace that was added": {client.In("shop", nil), 1},
		"of the test, if it gives some":   {client.In("shop", map[string]string{"team": "b"}), 0},
		"none of another namespace":       {client.In("apps", nil), 0},
	} {
		if got := len(test.client.Create(pod("web")).Called); got != test.called {
			t.Errorf("%s: called %d times", name, got)
		}
	}
}

func TestAnExecGuardThatExemptsByLabelsIsNotGreen(t *testing.T) {
	exempt := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "debug", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	deny := extension.ValidatorFunc[*corev1.PodExecOptions](func(context.Context, *corev1.PodExecOptions, *extension.Request) error { return extension.Deny("no") })
	exec := func(c *admit.Client) *admit.Result {
		return c.Connect("web", &corev1.PodExecOptions{Command: []string{"sh"}})
	}
	every := extension.Validating(deny, extension.Scope{ObjectSelector: exempt, Rules: extension.Resources("", "v1", []string{"pods/exec"}, "*")})
	if result := exec(admit.New(t, every)); !result.Allowed {
		t.Error("the guard is asked, which it never is in a cluster")
	}
	named := extension.Validating(deny, extension.Scope{ObjectSelector: exempt, Rules: extension.Connect("pods/exec")})
	if said := ended(t, named, func(c *admit.Client) { exec(c) }); !strings.Contains(said, "ObjectSelector: Rules[0] would never match") {
		t.Errorf("it says %q", said)
	}
}

// fatal is a test whose Fatalf panics.
type fatal struct{ testing.TB }

func (fatal) Helper() {}

func (fatal) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func TestWhatIsNoExtensionIsSaid(t *testing.T) {
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "struct {} is not an Extension, Watcher, Reconciler, Composite or *extension.Handler") {
			t.Error(said)
		}
	}()
	admit.New(fatal{t}, struct{}{}).Create(pod("web"))
}
