package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

type answers struct{}

func (*answers) Handle(context.Context, extension.Manager, *corev1.Pod, admission.Request) admission.Response {
	return admission.Allowed("")
}

func (*answers) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{Resources: []string{"pods"}, Verbs: []string{"get"}}}
}

// runs is a Watcher, a Reconciler and a Remover.
type runs struct{}

func (runs) Handle(context.Context, extension.Manager, watch.Event) {}
func (runs) Register(extension.Manager) error                       { return nil }
func (runs) Remove(context.Context, extension.Manager) error        { return nil }
func (runs) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

type composite struct {
	parts []any
	err   error
}

func (c composite) Parts(extension.Manager) ([]any, error) { return c.parts, c.err }

type endless struct{}

func (e endless) Parts(extension.Manager) ([]any, error) { return []any{e}, nil }

type badHandle struct{}

func (badHandle) Handle(context.Context, *corev1.Pod) error { return nil }

type mutates struct{}

func (mutates) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func TestPartsAreSortedByWhatTheirHostDoesWithThem(t *testing.T) {
	both := composite{parts: []any{
		&answers{}, composite{parts: []any{runs{}}}, extension.Mutating(mutates{}, extension.Scope{}), &answers{},
	}}
	parts, err := host.PartsOf(both, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(parts.Handlers) != 3 || len(parts.Watchers) != 1 || len(parts.Reconcilers) != 1 || len(parts.Removers) != 1 || parts.Empty() {
		t.Errorf("got %d handlers, %d watchers, %d reconcilers, %d removers",
			len(parts.Handlers), len(parts.Watchers), len(parts.Reconcilers), len(parts.Removers))
	}
	if rights := parts.ServerRights(); len(rights.Watched) != 1 || len(rights.Cluster)+len(rights.Namespaces) != 0 {
		t.Errorf("the server needs %v, want one rule in the watched namespace", rights)
	}
	if rights := parts.ReconcilerRights(); len(rights.Watched)+len(rights.Cluster)+len(rights.Namespaces) != 0 {
		t.Errorf("the reconciler needs %v, want nothing", rights)
	}
	if name := host.Open(parts.Handlers[1]).Name; name != "host_test.mutates" {
		t.Errorf("the second handler is %s", name)
	}
}

// validates returns a Validator of Pods with rules.
func validates(rules []admissionregistrationv1.RuleWithOperations) *extension.Handler {
	return extension.Validating(extension.ValidatorFunc[*corev1.Pod](
		func(context.Context, *corev1.Pod, *extension.Request) error { return nil }), extension.Scope{Rules: rules})
}

func TestATypeFitsItsRules(t *testing.T) {
	for name, e := range map[string]any{
		"its resource":        validates(extension.Pods()),
		"its subresources":    validates(extension.Resources("", "v1", []string{"pods", "pods/status", "pods/ephemeralcontainers"}, "UPDATE")),
		"every resource":      validates(extension.Resources("*", "*", []string{"*"}, "CREATE")),
		"a plural of its own": extension.Validating(extension.ValidatorFunc[*corev1.Endpoints](func(context.Context, *corev1.Endpoints, *extension.Request) error { return nil }), extension.Scope{Rules: extension.Resources("", "v1", []string{"endpoints"}, "CREATE")}), //nolint:staticcheck // deprecated, and still served
		"metadata":            extension.Validating(extension.ValidatorFunc[*metav1.PartialObjectMetadata](func(context.Context, *metav1.PartialObjectMetadata, *extension.Request) error { return nil }), extension.Scope{Rules: extension.Resources("apps", "v1", []string{"deployments"}, "CREATE")}),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := host.PartsOf(e, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAValueWithoutAFormIsToldWhatWouldBeRight(t *testing.T) {
	invalid := errors.New("Retention: must not be negative")
	var none *answers
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"nil":                                     {nil, "nil is not an extension"},
		"a nil pointer":                           {none, "a nil *host_test.answers"},
		"a string":                                {"x", "string is not an Extension, Watcher, Reconciler, Composite or *extension.Handler"},
		"a value instead of its pointer":          {answers{}, "pass a pointer"},
		"a Handle of another signature":           {badHandle{}, "it has Handle(context.Context, *v1.Pod) error; an Extension has Handle(context.Context, extension.Manager"},
		"an empty Handler":                        {&extension.Handler{}, "make one with extension.Mutating"},
		"a Handler instead of its pointer":        {*extension.Mutating(mutates{}, extension.Scope{}), "pass a pointer"},
		"a Handler of a nil function":             {extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), extension.Scope{}), "is nil: extension.MutatorFunc"},
		"a Handler of nil":                        {extension.Mutating[*corev1.Pod](nil, extension.Scope{}), "is nil"},
		"a function":                              {func() {}, "func() is not an extension: make a Handler of the function"},
		"a Mutator that is not wrapped":           {mutates{}, "extension.Mutating(x, scope)"},
		"a type that its rules do not have":       {validates(extension.Resources("apps", "v1", []string{"deployments"}, "CREATE")), "a *v1.Pod is the object of \"pods\", not of \"apps/deployments\": use"},
		"a type that only some of its rules have": {validates(append(extension.Pods(), extension.Resources("batch", "v1", []string{"jobs"}, "CREATE")...)), "\"batch/jobs\""},
		"a singular":                              {validates(extension.Resources("", "v1", []string{"pod"}, "CREATE")), "a *v1.Pod is the object of \"pods\", not of \"pod\", and Kubernetes has no \"pod\": use"},
		"a group that there is not":               {validates(extension.Resources("core", "v1", []string{"pods"}, "CREATE")), "not of \"core/pods\", and Kubernetes has no \"core/pods\" (the name of the core group is \"\"): use"},
		"a group that has no such resource":       {validates(extension.Resources("apps", "v1", []string{"pods"}, "CREATE")), "not of \"apps/pods\", and Kubernetes has no \"apps/pods\": use"},
		"a custom resource":                       {validates(extension.Resources("example.com", "v1", []string{"pods"}, "CREATE")), "not of \"example.com/pods\": use"},
		"a type that is not the Pod of no rules":  {extension.ValidatingFunc(func(context.Context, *appsv1.Deployment, *extension.Request) error { return nil }, extension.Scope{}), "a *v1.Deployment is the object of \"apps/deployments\", not of \"pods\": use"},
		"a type that is not that of scale":        {validates(extension.Resources("", "v1", []string{"pods", "pods/scale"}, "UPDATE")), "not of \"pods/scale\": use"},
		"a type that is not that of the options":  {validates(extension.Connect("pods/exec")), "not of \"pods/exec\": use"},
		"a connection that is none": {extension.Validating(extension.ValidatorFunc[*corev1.PodExecOptions](
			func(context.Context, *corev1.PodExecOptions, *extension.Request) error { return nil }), extension.Scope{Rules: extension.Connect("exec")}), "\"exec\""},
		"invalid options":       {composite{err: invalid}, "host_test.composite: Retention: must not be negative"},
		"no parts":              {composite{}, "host_test.composite has no parts"},
		"a part without a form": {composite{parts: []any{"x"}}, "a part of host_test.composite: string is not"},
		"itself as a part":      {endless{}, "nested more than 16 deep"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := host.PartsOf(test.value, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}

// guest is whatever it is made a part of, and counts how often it is registered.
type guest struct{ registered int }

func (g *guest) Register(extension.Manager) error { g.registered++; return nil }

func (*guest) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (*guest) Validate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (*guest) Handle(context.Context, extension.Manager, watch.Event) {}

func (*guest) Record(context.Context, extension.Record) error { return nil }

func TestAValueIsRegisteredOnceWhateverIsMadeOfIt(t *testing.T) {
	g := &guest{}
	parts, err := host.PartsOf(composite{parts: []any{
		g, extension.Mutating[*corev1.Pod](g, extension.Scope{}), extension.Validating[*corev1.Pod](g, extension.Scope{}),
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(parts.Register(nil), parts.RegisterWatcher(nil, g)); err != nil || g.registered != 1 {
		t.Errorf("registered %d times: %v", g.registered, err)
	}
	only, err := host.PartsOf(&guest{}, nil)
	if err != nil || len(only.Watchers) != 1 || len(only.Recorders) != 1 {
		t.Fatalf("got %+v, %v", only, err)
	}
	if err := only.RegisterWatcher(nil, only.Watchers[0]); err != nil || only.Watchers[0].(*guest).registered != 1 {
		t.Errorf("a Watcher is not registered: %v", err)
	}
}

func TestAPartIsAddedOnce(t *testing.T) {
	g, again := &guest{}, &guest{}
	handler := extension.Mutating[*corev1.Pod](g, extension.Scope{})
	for name, test := range map[string]struct {
		parts []any
		want  string // empty: it is fine
	}{
		"a Watcher twice":                                    {[]any{g, g}, "*host_test.guest is added twice"},
		"a Handler twice":                                    {[]any{handler, handler}, "*host_test.guest is added twice"},
		"a Mutator twice with one scope":                     {[]any{handler, extension.Mutating[*corev1.Pod](g, extension.Scope{})}, "*host_test.guest is added twice"},
		"a Mutator with two scopes":                          {[]any{handler, extension.Mutating[*corev1.Pod](g, extension.Scope{Name: "other"})}, ""},
		"a Mutator and a Validator":                          {[]any{handler, extension.Validating[*corev1.Pod](g, extension.Scope{})}, ""},
		"two of one type":                                    {[]any{g, again, handler, extension.Mutating[*corev1.Pod](again, extension.Scope{})}, ""},
		"values without a field, which may have one address": {[]any{&answers{}, &answers{}}, ""},
	} {
		parts, err := host.PartsOf(composite{parts: test.parts}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := parts.Check(); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

type sees struct{}

func (sees) Watch(context.Context, extension.Manager, watch.EventType, *corev1.ConfigMap) {}

func TestAWatcherThatSeesNothingIsRefused(t *testing.T) {
	never := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "DoesNotExist"}}}
	_, _, err := host.WatchedBy(extension.Watching(sees{}, extension.WatchScope{Selector: never}), scheme.Scheme)
	if err == nil || !strings.Contains(err.Error(), "host_test.sees: WatchScope.Selector: a=b,!a matches nothing: no value of a meets it") {
		t.Errorf("got %v", err)
	}
}

// reader reads one kind.
type reader struct {
	guest
	object client.Object
}

func (r *reader) Reads() []client.Object { return []client.Object{r.object} }

func TestAListIsNoKindToRead(t *testing.T) {
	list := &unstructured.Unstructured{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	parts, err := host.PartsOf(&reader{object: list}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parts.Reads(scheme.Scheme, host.Watches); err == nil || !strings.Contains(err.Error(), "ConfigMapList is a list: name the kind of its items, ConfigMap") {
		t.Errorf("got %v", err)
	}
}
