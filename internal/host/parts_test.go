package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/watch"
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
	if rights, cluster := parts.Rights(); len(rights) != 1 || len(cluster) != 0 {
		t.Errorf("got the rights %v and %v, want one rule and none", rights, cluster)
	}
	if name := host.Open(parts.Handlers[1]).Name; name != "host_test.mutates" {
		t.Errorf("the second handler is %s", name)
	}
}

func TestAValueWithoutAFormIsToldWhatWouldBeRight(t *testing.T) {
	invalid := errors.New("Retention: must not be negative")
	var none *answers
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"nil":                              {nil, "nil is not an extension"},
		"a nil pointer":                    {none, "a nil *host_test.answers"},
		"a string":                         {"x", "string is not an Extension, Watcher, Reconciler, Composite or *extension.Handler"},
		"a value instead of its pointer":   {answers{}, "pass a pointer"},
		"a Handle of another signature":    {badHandle{}, "it has Handle(context.Context, *v1.Pod) error; an Extension has Handle(context.Context, extension.Manager"},
		"an empty Handler":                 {&extension.Handler{}, "make one with extension.Mutating"},
		"a Handler instead of its pointer": {*extension.Mutating(mutates{}, extension.Scope{}), "pass a pointer"},
		"a Handler of a nil function":      {extension.Mutating(extension.MutatorFunc[*corev1.Pod](nil), extension.Scope{}), "is nil: extension.MutatorFunc"},
		"a Handler of nil":                 {extension.Mutating[*corev1.Pod](nil, extension.Scope{}), "is nil"},
		"a function":                       {func() {}, "func() is not an extension: make a Handler of the function"},
		"a Mutator that is not wrapped":    {mutates{}, "extension.Mutating(x, scope)"},
		"invalid options":                  {composite{err: invalid}, "host_test.composite: Retention: must not be negative"},
		"no parts":                         {composite{}, "host_test.composite has no parts"},
		"a part without a form":            {composite{parts: []any{"x"}}, "a part of host_test.composite: string is not"},
		"itself as a part":                 {endless{}, "nested more than 16 deep"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := host.PartsOf(test.value, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}
