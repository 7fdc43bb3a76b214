package admit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/fakes"
)

// A watch that controller-runtime filters stays at its last event if nobody reads that any more.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

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
	if result := admit.New(t, replicas).Update(deployment.DeepCopy(), deployment); *result.Object.(*appsv1.Deployment).Spec.Replicas != 3 {
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

func (*keys) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}}}
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
	if err != nil || string(patched.Data["a"]) != "b" {
		t.Errorf("%v, %v", patched, err)
	}
}

// selfish denies Pods of others than its manager.
type selfish struct {
	kube client.Client
	self cluster.Self
}

func (s *selfish) Register(mgr extension.Manager) (err error) {
	s.kube, err = cluster.NewClient(mgr, nil)
	return err
}

func (s *selfish) Validate(ctx context.Context, _ *corev1.Pod, req *extension.Request) error {
	me, err := s.self.Username(ctx, s.kube)
	if err == nil && req.User().Username != me {
		err = extension.Denyf("you are not %s", me)
	}
	return err
}

func TestAnExtensionMayAskWhoItIs(t *testing.T) {
	client := admit.New(t, extension.Validating(&selfish{}, extension.Scope{}))
	const me = "system:serviceaccount:admitkit-system:admitkit"
	if result := client.As("alice").Create(pod("web")); result.Reason != "you are not "+me {
		t.Errorf("%+v", result)
	}
	if result := client.As(me).Create(pod("web")); !result.Allowed {
		t.Errorf("%+v", result)
	}
}

// binder denies Pods of users who may not bind the role view.
type binder struct{ kube client.Client }

func (*binder) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"localsubjectaccessreviews"}, Verbs: []string{"create"}}}
}

func (b *binder) Register(mgr extension.Manager) (err error) {
	b.kube, err = cluster.NewClient(mgr, nil)
	return err
}

func (b *binder) Validate(ctx context.Context, _ *corev1.Pod, req *extension.Request) error {
	view := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	allowed, reason, err := cluster.MayBind(ctx, b.kube, req.User(), view, req.Namespace)
	if err == nil && !allowed {
		err = extension.Deny(reason)
	}
	return err
}

func TestTheTestSaysWhoMayDoWhat(t *testing.T) {
	client := admit.New(t, extension.Validating(&binder{}, extension.Scope{}))
	if result := client.As("ada").Create(pod("web")); !strings.Contains(result.Reason, "has not the right to bind ClusterRole view") {
		t.Errorf("without an answer: %+v", result)
	}
	client.Authorize(func(spec authorizationv1.SubjectAccessReviewSpec) bool {
		return spec.User == "ada" && spec.ResourceAttributes.Verb == "bind" && spec.ResourceAttributes.Name == "view"
	})
	for user, allowed := range map[string]bool{"ada": true, "eve": false} {
		if result := client.As(user).Create(pod("web")); result.Allowed != allowed || result.Err != nil {
			t.Errorf("%s: %+v", user, result)
		}
	}
}

// introspective denies every Pod with what it may do itself.
type introspective struct{ kube client.Client }

func (*introspective) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"a"}, Verbs: []string{"get"}}, {NonResourceURLs: []string{"/logs/*"}, Verbs: []string{"get"}},
	}
}

func (i *introspective) Register(mgr extension.Manager) (err error) {
	i.kube, err = cluster.NewClient(mgr, nil)
	return err
}

func (i *introspective) Validate(ctx context.Context, _ *corev1.Pod, _ *extension.Request) error {
	var may []string
	for name, spec := range map[string]authorizationv1.SelfSubjectAccessReviewSpec{
		"get a":     {ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "shop", Verb: "get", Resource: "pods", Name: "a"}},
		"get b":     {ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "shop", Verb: "get", Resource: "pods", Name: "b"}},
		"get log":   {NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/logs/x", Verb: "get"}},
		"get other": {NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: spec}
		if err := i.kube.Create(ctx, review); err != nil {
			return err
		}
		if review.Status.Allowed {
			may = append(may, name)
		}
	}
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "shop"}}
	if err := i.kube.Create(ctx, rules); err != nil {
		return err
	}
	slices.Sort(may)
	return extension.Denyf("it may %q by %d rules", may, len(rules.Status.ResourceRules)+len(rules.Status.NonResourceRules))
}

func TestAnExtensionMayAskWhatItMayDo(t *testing.T) {
	client := admit.New(t, extension.Validating(&introspective{}, extension.Scope{}))
	if result := client.Create(pod("web")); result.Reason != `it may ["get a" "get log"] by 2 rules` {
		t.Errorf("%+v", result)
	}
}

func TestTheClusterInMemorySaysWhatItDoesNotServe(t *testing.T) {
	kube := admit.New(t, owner).With(deployment("web")).Manager().GetKubeManager().GetClient()
	err := kube.SubResource("scale").Update(t.Context(), deployment("web"), client.WithSubResourceBody(&autoscalingv1.Scale{}))
	if err == nil || !strings.Contains(err.Error(), "the cluster in memory does not serve deployments/scale") {
		t.Error(err)
	}
}

// team lets Pods into namespaces that have a team.
type team struct {
	reads []client.Object
	kube  client.Reader
}

func (x *team) Reads() []client.Object { return x.reads }

func (x *team) Register(mgr extension.Manager) error {
	x.kube = mgr.GetKubeManager().GetClient()
	return nil
}

func (x *team) Validate(ctx context.Context, _ *corev1.Pod, req *extension.Request) error {
	var namespace corev1.Namespace
	if err := x.kube.Get(ctx, client.ObjectKey{Name: req.Namespace}, &namespace); err != nil {
		return err
	}
	if namespace.Labels["team"] == "" {
		return extension.Denyf("namespace %s has no team", req.Namespace)
	}
	return nil
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
}

func TestAnExtensionReadsTheObjectsThatAreGiven(t *testing.T) {
	chain := admit.New(t, extension.Validating(&team{reads: []client.Object{&corev1.Namespace{}}}, extension.Scope{})).
		With(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "a"}}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lost"}})
	if result := chain.In("shop", nil).Create(pod("web")); !result.Allowed {
		t.Errorf("%+v", result)
	}
	if result := chain.In("lost", nil).Create(pod("web")); result.Reason == "" || result.Err != nil {
		t.Errorf("%+v", result)
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
		"a label that no object can have": {mutator(func(pod *corev1.Pod, _ *extension.Request) error {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, "contact", "shop@example.com")
			return nil
		}, extension.Scope{}), create, "sets what the API server refuses:\nmetadata.labels: Invalid value: \"shop@example.com\""},
		"an annotation that no object can have": {mutator(func(pod *corev1.Pod, _ *extension.Request) error {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "example.com/contact/shop", "x")
			return nil
		}, onUpdate), update, "sets what the API server refuses:\nmetadata.annotations: Invalid value: \"example.com/contact/shop\""},
		"the request in place of the object": {mutator(func(_ *corev1.Pod, req *extension.Request) error {
			req.Object.Raw = []byte(`{"metadata":{"name":"web","labels":{"a":"b"}}}`)
			return nil
		}, extension.Scope{}), create, "changes the object of its request, but nothing comes of it; change the object that it is given"},
		"a panic":                      {mutator(func(*corev1.Pod, *extension.Request) error { panic("boom") }, extension.Scope{}), create, "panics:\npanic: boom (admit_test.go:"},
		"a nil map":                    {mutator(func(pod *corev1.Pod, _ *extension.Request) error { pod.Labels["a"] = "b"; return nil }, extension.Scope{}), create, "nil map (admit_test.go:"},
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
		"a status, on UPDATE of the object": {
			mutator(func(pod *corev1.Pod, _ *extension.Request) error { pod.Status.Reason = "r"; return nil }, onUpdate), update,
			"changes a field that an update of pods does not change:\nstatus.reason",
		},
		"a status, on CREATE": {
			mutator(func(pod *corev1.Pod, _ *extension.Request) error { pod.Status.Reason = "r"; return nil }, extension.Scope{}), create,
			"sets the status, which the API server drops when it creates pods; set it by the subresource status:\nstatus",
		},
		"a status of a custom kind with the subresource, on CREATE": {
			extension.Mutating(extension.MutatorFunc[*unstructured.Unstructured](func(_ context.Context, gadget *unstructured.Unstructured, _ *extension.Request) error {
				return unstructured.SetNestedField(gadget.Object, "New", "status", "phase")
			}), extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gadgets"}, admissionregistrationv1.Create)}),
			func(c *admit.Client) { c.With(gadgets()).Create(gadget("new")) },
			"sets the status, which the API server drops when it creates gadgets; set it by the subresource status:\nstatus",
		},
		"a Pod encoded by its type": {&fakes.Extension{HandleStub: func(_ context.Context, _ extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
			pod.Labels = map[string]string{"a": "b"}
			encoded, err := json.Marshal(pod)
			if err != nil {
				return admission.Errored(http.StatusInternalServerError, err)
			}
			return admission.PatchResponseFromRaw(req.Object.Raw, encoded)
		}}, create, "loses the fields that its Go types do not know, which a newer API server may have; be a Mutator, or return mgr.PatchFromPod(req, pod):\n" +
			"fieldOfANewerVersion\nspec.containers.0.fieldOfANewerVersion\nspec.containers.0.resources.fieldOfANewerVersion\nspec.fieldOfANewerVersion"},
		"a field that Pods do not have": {misspelt{}, create, `unknown field "spec.dnsPolcy"`},
		"a change by a Validator": {extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			pod.Labels = map[string]string{"a": "b"}
			return nil
		}), extension.Scope{}), create, "because it is a Validator; make it a Mutator, or change a copy:\n@@"},
		"a change without a patch": {forgetful{}, create, "because its response has no patch; return mgr.PatchFromPod(req, pod):\n@@"},
		"a change with the zero response": {&fakes.Extension{HandleStub: func(_ context.Context, _ extension.Manager, pod *corev1.Pod, _ admission.Request) admission.Response {
			pod.Labels = map[string]string{"a": "b"}
			return admission.Response{}
		}}, create, "because its response has no patch"},
		"a read that is not declared": {extension.Validating(&team{}, extension.Scope{}), create, "extension admit_test.team reads what it does not declare:\nreading Namespace of v1 in an admission: no extension declares it: return it from Reads (extension.Reader), or ask the API server by GetAPIReader"},
		"a read in another form":      {extension.Validating(&team{reads: []client.Object{namespaceMetadata()}}, extension.Scope{}), create, "reading Namespace of v1 as a *v1.Namespace: Reads (extension.Reader) returns that kind in another form"},
		"a call without the right": {&reads{}, create, `needs rights that it does not ask for; return them from Rights(), NamespaceRights() or ClusterRights(), or the kind from Reads():
cannot get resource "secrets" in API group "" in the namespace "default"`},
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

func TestAStatusThatIsStoredIsNoBreach(t *testing.T) {
	ready := extension.MutatingFunc(func(_ context.Context, node *corev1.Node, _ *extension.Request) error {
		node.Status.Phase = corev1.NodePending
		return nil
	}, extension.Scope{Rules: extension.Resources("", "v1", []string{"nodes"}, admissionregistrationv1.Create)})
	if result := admit.New(t, ready).Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); result.Object.(*corev1.Node).Status.Phase != corev1.NodePending {
		t.Errorf("%+v", result.Object)
	}
}

// forgetful is an Extension that returns no patch.
type forgetful struct{}

func (forgetful) Handle(_ context.Context, _ extension.Manager, pod *corev1.Pod, _ admission.Request) admission.Response {
	pod.Labels = map[string]string{"a": "b"}
	return admission.Allowed("")
}

// reads is an Extension that reads a Secret, and says nothing of its failure.
type reads struct{ rights []rbacv1.PolicyRule }

func (r *reads) Rights() []rbacv1.PolicyRule { return r.rights }

func (r *reads) Handle(ctx context.Context, mgr extension.Manager, pod *corev1.Pod, req admission.Request) admission.Response {
	core, err := mgr.GetKubeClient()
	if err != nil {
		return admission.Errored(500, err)
	}
	secret, err := core.Secrets("default").Get(ctx, "key", metav1.GetOptions{})
	if err != nil {
		return admission.Allowed("").WithWarnings(err.Error())
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "key", string(secret.Data["key"]))
	return mgr.PatchFromPod(req, pod)
}

// guest counts how often it is registered. It is a Watcher, too.
type guest struct{ registered int }

func (g *guest) Register(extension.Manager) error {
	g.registered++
	return nil
}

func (*guest) Handle(context.Context, extension.Manager, watch.Event) {}

func (*guest) Mutate(context.Context, *corev1.Pod, *extension.Request) error   { return nil }
func (*guest) Validate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

type several []any

func (s several) Parts(extension.Manager) ([]any, error) { return s, nil }

func TestEachValueIsRegisteredOnceWhateverItIs(t *testing.T) {
	all, watches := &guest{}, &guest{}
	admit.New(t, several{
		extension.Mutating(all, extension.Scope{}), extension.Validating(all, extension.Scope{}), all, watches,
	}).Create(pod("web"))
	if all.registered != 1 || watches.registered != 1 {
		t.Errorf("one is registered %d times, the other %d times", all.registered, watches.registered)
	}
}

// readsThere has its rights in one namespace.
type readsThere struct {
	reads
	namespace string
}

func (r *readsThere) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{r.namespace: {{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}}
}

func TestACallHasTheRightsOfTheExtensions(t *testing.T) {
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "key"}, Data: map[string][]byte{"key": []byte("k")}}
	rule := func(verb, resource string, names ...string) *reads {
		return &reads{[]rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: names}}}
	}
	for name, test := range map[string]struct {
		extension any
		allowed   bool
	}{
		"by the verb and the resource": {rule("get", "secrets"), true},
		"by the name":                  {rule("get", "secrets", "key"), true},
		"by wildcards":                 {rule("*", "*"), true},
		"in the namespace":             {&readsThere{namespace: "default"}, true},
		"not in another namespace":     {&readsThere{namespace: "apps"}, false},
		"not by another verb":          {rule("list", "secrets"), false},
		"not by another resource":      {rule("get", "configmaps"), false},
		"not by another name":          {rule("get", "secrets", "lock"), false},
		"not by a subresource":         {rule("get", "secrets/status"), false},
		"not by default":               {&reads{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := &verdict{TB: t}
			result := admit.New(v, test.extension).With(key).Create(pod("web"))
			if test.allowed && (len(v.errors) > 0 || result.Pod().Annotations["key"] != "k") {
				t.Errorf("got %q, %+v", v.errors, result)
			}
			const forbidden = `secrets "key" is forbidden: the extensions cannot get resource "secrets" in API group "" in the namespace "default"`
			if !test.allowed && (len(v.errors) != 1 || len(result.Warnings) != 1 || !strings.HasPrefix(result.Warnings[0], forbidden)) {
				t.Errorf("got %q, %q", v.errors, result.Warnings)
			}
		})
	}
}

func TestASubresourceIsAdmitted(t *testing.T) {
	var got string
	sees := func(rules []admissionregistrationv1.RuleWithOperations) *extension.Handler {
		return extension.Validating(extension.ValidatorFunc[*unstructured.Unstructured](func(_ context.Context, u *unstructured.Unstructured, req *extension.Request) error {
			got = fmt.Sprintf("%s of %s/%s: a %s %s", req.Operation, req.Resource.Resource, req.SubResource, u.GetKind(), u.GetName())
			return nil
		}), extension.Scope{Rules: rules})
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}}
	more := deployment.DeepCopy()
	more.Spec.Replicas = new(int32(3))
	for name, test := range map[string]struct {
		rules []admissionregistrationv1.RuleWithOperations
		ask   func(*admit.Client) *admit.Result
		want  string
	}{
		"ephemeral containers": {
			extension.Resources("", "v1", []string{"pods/ephemeralcontainers"}, "UPDATE"),
			func(c *admit.Client) *admit.Result {
				return c.Subresource("ephemeralcontainers").Update(pod("web"), pod("web"))
			},
			"UPDATE of pods/ephemeralcontainers: a Pod web",
		},
		"a status": {
			extension.Resources("apps", "v1", []string{"deployments/status"}, "*"),
			func(c *admit.Client) *admit.Result { return c.Subresource("status").Update(deployment, more) },
			"UPDATE of deployments/status: a Deployment web",
		},
		"a scale": {
			extension.Resources("apps", "v1", []string{"deployments/scale"}, "*"),
			func(c *admit.Client) *admit.Result { return c.Subresource("scale").Update(deployment, more) },
			"UPDATE of deployments/scale: a Scale web",
		},
		"an eviction": {
			extension.Resources("", "v1", []string{"pods/eviction"}, "*"),
			func(c *admit.Client) *admit.Result { return c.Subresource("eviction").Create(pod("web")) },
			"CREATE of pods/eviction: a Eviction web",
		},
		"a port-forward": {
			extension.Connect("pods/portforward"),
			func(c *admit.Client) *admit.Result { return c.Connect("web", &corev1.PodPortForwardOptions{}) },
			"CONNECT of pods/portforward: a PodPortForwardOptions ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got = ""; !test.ask(admit.New(t, sees(test.rules)).Strict()).Allowed || got != test.want {
				t.Errorf("the extension saw %q", got)
			}
		})
	}
	limit := extension.Mutating(extension.MutatorFunc[*autoscalingv1.Scale](func(_ context.Context, scale *autoscalingv1.Scale, req *extension.Request) error {
		old, err := extension.Old[*autoscalingv1.Scale](req)
		scale.Spec.Replicas = old.Spec.Replicas
		return err
	}), extension.Scope{Rules: extension.Resources("apps", "v1", []string{"deployments/scale"}, "UPDATE")})
	if result := admit.New(t, limit).Subresource("scale").Update(deployment, more); result.Object.(*autoscalingv1.Scale).Spec.Replicas != 2 {
		t.Errorf("%+v", result)
	}
}

func TestWhoIsNotCalledIsToldWhy(t *testing.T) {
	none := func(*corev1.Pod, *extension.Request) error { return nil }
	team := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	condition := func(expression string) []admissionregistrationv1.MatchCondition {
		return []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: expression}}
	}
	ignore := admissionregistrationv1.Ignore
	for name, test := range map[string]struct {
		scope extension.Scope
		want  string
	}{
		"another operation": {extension.Scope{Name: "x", Rules: extension.Pods("DELETE", "UPDATE")}, "its rules name DELETE,UPDATE of v1 pods; this is CREATE of v1 pods"},
		"another namespace": {extension.Scope{Name: "x", NamespaceSelector: team}, "its NamespaceSelector is kubernetes.io/metadata.name notin (admitkit-system,kube-node-lease,kube-system),team=a; the namespace has kubernetes.io/metadata.name=default"},
		"other labels":      {extension.Scope{Name: "x", ObjectSelector: team}, "its ObjectSelector is team=a, and the object has other labels"},
		"a condition":       {extension.Scope{Name: "x", MatchConditions: condition("request.userInfo.username == 'alice'")}, "its match condition mine is false"},
		"a failure":         {extension.Scope{Name: "x", MatchConditions: condition("object.spec.hostname == 'a'"), FailurePolicy: &ignore}, "a match condition failed, and its failure policy is Ignore: mine: expression 'object.spec.hostname == 'a'' resulted in error: no such key: hostname"},
	} {
		t.Run(name, func(t *testing.T) {
			v := &verdict{TB: t}
			client := admit.New(v, mutator(none, test.scope))
			if result := client.Create(pod("web")); result.NotCalled["x"] != test.want || len(v.errors) > 0 {
				t.Errorf("got %q, %q", result.NotCalled, v.errors)
			}
			client.Strict().Create(pod("web"))
			if want := "CREATE Pod web: extension x is not called: " + test.want; !slices.Equal(v.errors, []string{want}) {
				t.Errorf("got %q", v.errors)
			}
		})
	}
}

func TestWhatAClusterNeedsToStartIsLeftOutUnderFail(t *testing.T) {
	everything := extension.Resources("*", "*", []string{"*/*"}, "*")
	inSystem := pod("coredns")
	inSystem.Namespace = metav1.NamespaceSystem
	ignore := admissionregistrationv1.Ignore
	for name, test := range map[string]struct {
		scope  extension.Scope
		object client.Object
		user   string
		why    string
	}{
		"a Node":                     {extension.Scope{Rules: everything}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "kubelet", "while the webhook is down, no node could register"},
		"a Node under Ignore":        {extension.Scope{Rules: everything, FailurePolicy: &ignore}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "kubelet", ""},
		"a Node that a rule names":   {extension.Scope{Rules: extension.Resources("", "v1", []string{"nodes"}, "*")}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "kubelet", ""},
		"a Pod of kube-system":       {extension.Scope{Rules: everything}, inSystem, "kubelet", "its NamespaceSelector is kubernetes.io/metadata.name notin (admitkit-system,kube-node-lease,kube-system)"},
		"an object of an API server": {extension.Scope{Rules: everything}, pod("a"), "system:apiserver", "an API server could not write what it needs itself"},
		"a Pod":                      {extension.Scope{Rules: everything}, pod("a"), "alice", ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.scope.Name = "x"
			v := extension.Validating(extension.ValidatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error { return nil }), test.scope)
			if why := admit.New(t, v).As(test.user).Create(test.object).NotCalled["x"]; (why == "") != (test.why == "") || !strings.Contains(why, test.why) {
				t.Errorf("got %q", why)
			}
		})
	}
}

func TestATestThatTestsNothingFails(t *testing.T) {
	v := &verdict{TB: t}
	admit.New(v).Create(pod("web"))
	if !slices.Equal(v.errors, []string{"CREATE Pod web: there is no extension that answers admissions: give one to New"}) {
		t.Errorf("got %q", v.errors)
	}
	for want, request := range map[string]func(*admit.Client){
		"admit: MatchConditions: no scope has the match condition mein": func(c *admit.Client) { c.MatchConditions(map[string]bool{"mein": true}).Create(pod("web")) },
		"admit: the object of a CREATE is nil":                          func(c *admit.Client) { c.Create(nil) },
	} {
		if said := ended(t, owner, request); said != want {
			t.Errorf("got %q, want %q", said, want)
		}
	}
}

func TestAnExtensionThatIsTooLateWasCalledAndHasAnError(t *testing.T) {
	v := &verdict{TB: t}
	late := extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(ctx context.Context, _ *corev1.Pod, _ *extension.Request) error {
		<-ctx.Done()
		return nil
	}), extension.Scope{Name: "late", Timeout: time.Second})
	result := admit.New(v, late).Strict().Create(pod("web"))
	if result.Allowed || !slices.Equal(result.Called, []string{"extension.MutatorFunc"}) || result.Err == nil || !strings.Contains(result.Err.Error(), "did not finish in time") {
		t.Errorf("allowed is %t, called are %q, the error is %v", result.Allowed, result.Called, result.Err)
	}
	for _, said := range v.errors {
		if strings.Contains(said, "no extension") {
			t.Errorf("it says %q", said)
		}
	}
}

func TestAScopeThatNothingMatchesEndsTheTest(t *testing.T) {
	x := extension.Validating(extension.ValidatorFunc[*unstructured.Unstructured](
		func(context.Context, *unstructured.Unstructured, *extension.Request) error { return nil }),
		extension.Scope{Name: "x", Rules: extension.Resources("apps", "v1", []string{"deployment"}, "*")})
	if said := ended(t, x, func(c *admit.Client) { c.Create(pod("web")) }); !strings.Contains(said, "the scope of webhook x: Rules[0]: Kubernetes has no resource deployment.apps, but deployments.apps") {
		t.Errorf("it says %q", said)
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
	const may = "authorizer.requestResource.check('delete').allowed()"
	called := func(c *admit.Client, object *unstructured.Unstructured) int { return len(c.Create(object).Called) }
	of := func(apiVersion, kind string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": "x"}}}
	}
	crd := of("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	crd.Object["spec"] = map[string]any{
		"group": "example.com", "scope": "Cluster", "names": map[string]any{"kind": "Gateway", "plural": "gws"},
		"versions": []any{map[string]any{"name": "v1", "served": true}},
	}
	for name, test := range map[string]struct {
		scope  extension.Scope
		object *unstructured.Unstructured
		remedy string
		give   func(*admit.Client) *admit.Client
		called int
	}{
		"a match condition that asks the authorizer": {
			extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: may}}},
			of("v1", "Pod"),
			"mine (" + may + "), which reads the authorizer: give its result by MatchConditions",
			func(c *admit.Client) *admit.Client { return c.MatchConditions(map[string]bool{"mine": true}) }, 1,
		},
		"one whose result is false": {
			extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: may}}},
			of("v1", "Pod"),
			"give its result by MatchConditions",
			func(c *admit.Client) *admit.Client { return c.MatchConditions(map[string]bool{"mine": false}) }, 0,
		},
		"the plural of a custom kind": {
			extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gws"}, "*")},
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

func TestARequestThatNoAPIServerHasEndsTheTest(t *testing.T) {
	same, shop := pod("web"), pod("web")
	shop.Namespace = "shop"
	for name, test := range map[string]struct {
		ask  func(*admit.Client)
		want string
	}{
		"an update of nothing":             {func(c *admit.Client) { c.Update(nil, pod("web")) }, "the old object of an UPDATE is nil"},
		"an update of an object to itself": {func(c *admit.Client) { c.Update(same, same) }, "the old and the new object of an UPDATE are one: change a DeepCopy"},
		"a namespace that cannot exist":    {func(c *admit.Client) { c.In("My Shop", nil).Create(pod("web")) }, `In: "My Shop": a lowercase RFC 1123 label`},
		"an object of another namespace":   {func(c *admit.Client) { c.In("apps", nil).Create(shop) }, "the Pod is in the namespace shop, and the client in apps"},
		"a user without a name":            {func(c *admit.Client) { c.As("").Create(pod("web")) }, "As: the user has no name"},
		"an object that is nil":            {func(c *admit.Client) { c.With(nil) }, "admit: an object is nil"},
		"a scheme that is nil":             {func(c *admit.Client) { c.WithScheme(nil) }, "WithScheme: the scheme is nil"},
		"a scheme that comes too late":     {func(c *admit.Client) { c.Create(pod("web")); c.WithScheme(runtime.NewScheme()) }, "WithScheme: after the first request"},
	} {
		if said := ended(t, owner, test.ask); !strings.Contains(said, test.want) {
			t.Errorf("%s: it says %q, want %q", name, said, test.want)
		}
	}
}

// ending is a test that ends when it is told to.
type ending struct {
	verdict
	cleanups []func()
}

func (e *ending) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func TestAClientThatSendsNothingFailsTheTest(t *testing.T) {
	for name, test := range map[string]struct {
		test func(*admit.Client)
		want string // empty: it passes
	}{
		"that of New":              {func(*admit.Client) {}, "admit: the client that New returns sends no request"},
		"that of As":               {func(c *admit.Client) { c.As("alice"); c.Create(pod("web")) }, "admit: the client that As returns sends no request: it returns another client, and does not change its own"},
		"that of Strict":           {func(c *admit.Client) { c.Strict(); c.Create(pod("web")) }, "that Strict returns"},
		"that of In":               {func(c *admit.Client) { c.In("apps", nil); c.Create(pod("web")) }, "that In returns"},
		"that of DryRun":           {func(c *admit.Client) { c.DryRun(); c.Create(pod("web")) }, "that DryRun returns"},
		"that of MatchConditions":  {func(c *admit.Client) { c.MatchConditions(nil); c.Create(pod("web")) }, "that MatchConditions returns"},
		"that of Subresource":      {func(c *admit.Client) { c.Subresource("status"); c.Create(pod("web")) }, "that Subresource returns"},
		"not one of a chain":       {func(c *admit.Client) { c.As("alice").DryRun().Strict().Create(pod("web")) }, ""},
		"not one with its Manager": {func(c *admit.Client) { c.With(pod("web")).Manager() }, ""},
	} {
		e := &ending{verdict: verdict{TB: t}}
		test.test(admit.New(e, owner))
		for _, cleanup := range slices.Backward(e.cleanups) {
			cleanup()
		}
		if said := strings.Join(e.errors, "\n"); !strings.Contains(said, test.want) || (said == "") != (test.want == "") {
			t.Errorf("%s: it says %q, want %q", name, said, test.want)
		}
	}
}

// unregistered is a kind that no scheme has.
type unregistered struct{ corev1.ConfigMap }

func TestATypeThatTheSchemeLacksIsToldWithTheRemedy(t *testing.T) {
	x := extension.ValidatingFunc(func(context.Context, *unregistered, *extension.Request) error { return nil }, extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"gadgets"}, "*")})
	if said := ended(t, x, func(c *admit.Client) { c.Create(&unregistered{}) }); !strings.Contains(said, "admit_test.unregistered") || !strings.Contains(said, "give its scheme by WithScheme") {
		t.Errorf("it says %q", said)
	}
}

// fatal is a test whose Fatalf panics.
type fatal struct{ testing.TB }

func (fatal) Helper() {}

func (fatal) Cleanup(func()) {} // a real one has failed

func (fatal) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func TestWhatIsNoExtensionIsSaid(t *testing.T) {
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "struct {} is not an Extension, Watcher, Reconciler, Composite or *extension.Handler") {
			t.Error(said)
		}
	}()
	admit.New(fatal{t}, struct{}{}).Create(pod("web"))
}

func TestAReplayFailsTheTestWithWhatDiffers(t *testing.T) {
	line := func(by string) string {
		return `{"webhook":{"name":"owner","mutates":true,"mode":"Enforce"},"request":{"uid":"1","name":"web","namespace":"apps","operation":"CREATE","kind":{"version":"v1","kind":"Pod"},` +
			`"resource":{"version":"v1","resource":"pods"},"userInfo":{"username":"alice"},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}},` +
			`"answer":{"outcome":"allowed","warnings":["owned by alice"],"auditAnnotations":{"extension.MutatorFunc.owner":"alice"},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","annotations":{"owner":"` + by + `"}}}}}` + "\n"
	}
	for by, want := range map[string]string{"alice": "", "bob": "mutate/owner: effect: changed otherwise: 1\n"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "some.jsonl"), []byte(line(by)), 0o600); err != nil {
			t.Fatal(err)
		}
		v := &verdict{TB: t}
		admit.New(v, owner).Replay(dir)
		if said := strings.Join(v.errors, "\n"); !strings.Contains(said, want) || (said == "") != (want == "") {
			t.Errorf("a recording of %s: it says %q", by, said)
		}
	}
	if said := ended(t, owner, func(c *admit.Client) { c.Replay(t.TempDir()) }); !strings.Contains(said, "no admission is recorded there") {
		t.Errorf("without recordings it says %q", said)
	}
}
