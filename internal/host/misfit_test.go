package host_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

type plain struct{}

func (plain) Handle(context.Context, extension.Manager, *corev1.Pod, admission.Request) admission.Response {
	return admission.Allowed("")
}

type (
	wrongRights struct{ plain }
	wrongReads  struct{ plain }
	wrongScope  struct{ plain }
	byPointer   struct{ plain }
	right       struct{ plain }
	wrongInside struct{}
	otherwise   struct{ plain }
	scoped      struct{}
	both        struct{ plain }
)

func (wrongRights) Rights() []string               { return nil }
func (wrongReads) Reads() []string                 { return nil }
func (wrongScope) Scope() *extension.Scope         { return nil }
func (*byPointer) Rights() []rbacv1.PolicyRule     { return nil }
func (right) Rights() []rbacv1.PolicyRule          { return nil }
func (right) Scope() extension.Scope               { return extension.Scope{} }
func (wrongInside) ClusterRights() map[string]bool { return nil }
func (otherwise) Scope(string) extension.Scope     { return extension.Scope{} }
func (scoped) Scope() extension.Scope              { return extension.Scope{Rules: extension.Pods("UPDATE")} }

func (both) Scope() extension.Scope { return extension.Scope{Rules: extension.Pods("UPDATE")} }

func (scoped) Mutate(context.Context, *corev1.Pod, *extension.Request) error {
	return nil
}

func (both) Mutate(context.Context, *corev1.Pod, *extension.Request) error {
	return nil
}

func (wrongInside) Mutate(context.Context, *corev1.Pod, *extension.Request) error {
	return nil
}

// Nobody would call such a method, and an extension without its rights fails far away.
func TestAnOptionalMethodWithAnotherSignatureIsRefused(t *testing.T) {
	for want, e := range map[string]any{
		"wrongRights has Rights() []string, which nobody would call: it must be Rights() []rbacv1.PolicyRule": wrongRights{},
		"it must be Reads() []client.Object":        wrongReads{},
		"it must be Scope() extension.Scope":        wrongScope{},
		"has the method Rights by its pointer only": byPointer{},
		"scoped has a method Scope, and another scope is given for it: write extension.Mutating(x, x.Scope()), or remove the method": extension.Mutating(scoped{}, extension.Scope{}),
		"it must be ClusterRights() []rbacv1.PolicyRule": extension.Mutating(wrongInside{}, extension.Scope{}),
	} {
		if _, err := host.PartsOf(e, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v, want %q", e, err, want)
		}
	}
	for _, e := range []any{&byPointer{}, right{}, &right{}, plain{}, otherwise{}, extension.Mutating(scoped{}, scoped{}.Scope()), extension.Mutating(both{}, extension.Scope{})} {
		if _, err := host.PartsOf(e, nil); err != nil {
			t.Errorf("%T: %v", e, err)
		}
	}
}
