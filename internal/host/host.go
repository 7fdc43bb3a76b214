// Package host is what runs extensions sees of them: the webhooks, the manager,
// and testing/admit. Authors see package extension only.
//
// [PartsOf] sorts what an author adds by what there is to do with it. [Open]
// shows a handler, [Warnings] and [AuditAnnotations] show what it said.
package host

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/bridge"
)

// inside is what package extension shows to nobody else.
var inside = bridge.Inside.(interface {
	HandlerOf(e extension.Extension, mgr extension.Manager) *extension.Handler
	Value(h *extension.Handler) any
	Name(h *extension.Handler) string
	Scope(h *extension.Handler) extension.Scope
	Mutates(h *extension.Handler) bool
	Type(h *extension.Handler) reflect.Type
	Admit(h *extension.Handler) func(context.Context, runtime.Object, *extension.Request) error
	Respond(h *extension.Handler) func(context.Context, runtime.Object, *extension.Request) admission.Response
	Warnings(r *extension.Request) []string
	AuditAnnotations(r *extension.Request) map[string]string
	DenialReason(err error) (reason string, denied bool)
})

// Handler is an extension.Handler opened. A Mutator and a Validator have Admit,
// an Extension, which makes a response of its own, has Respond: one of the two is
// nil. Both need an object of the handler's type.
type Handler struct {
	*extension.Handler
	// Name names the handler in logs, metrics and errors: its Go type.
	Name string
	// Scope is as the author gave it, defaults not yet filled in.
	Scope extension.Scope
	// Mutates reports whether the handler may change the object.
	Mutates bool

	Admit   func(ctx context.Context, obj runtime.Object, req *extension.Request) error
	Respond func(ctx context.Context, obj runtime.Object, req *extension.Request) admission.Response

	value any
	typ   reflect.Type
}

// Open opens a handler.
func Open(h *extension.Handler) *Handler {
	return &Handler{
		Handler: h, Name: inside.Name(h), Scope: inside.Scope(h), Mutates: inside.Mutates(h),
		Admit: inside.Admit(h), Respond: inside.Respond(h), value: inside.Value(h), typ: inside.Type(h),
	}
}

// NewObject returns an empty object of the handler's type, or nil when the
// handler takes a runtime.Object, whose type the object's kind decides.
func (h *Handler) NewObject() runtime.Object {
	if h.typ.Kind() != reflect.Pointer {
		return nil
	}
	return reflect.New(h.typ.Elem()).Interface().(runtime.Object)
}

// Register tells the handler its host, if it is [extension.Hosted].
func (h *Handler) Register(mgr extension.Manager) error {
	hosted, ok := h.value.(extension.Hosted)
	if !ok {
		return nil
	}
	if err := hosted.Register(mgr); err != nil {
		return fmt.Errorf("registering %s: %w", h.Name, err)
	}
	return nil
}

// HandlerOf makes a Handler of an Extension: mutating, with the scope of its
// Scope method if it has one.
func HandlerOf(e extension.Extension, mgr extension.Manager) *extension.Handler {
	return inside.HandlerOf(e, mgr)
}

// Warnings returns the warnings that were added to a request, in order.
func Warnings(r *extension.Request) []string { return inside.Warnings(r) }

// AuditAnnotations returns the audit annotations that were added to a request.
func AuditAnnotations(r *extension.Request) map[string]string { return inside.AuditAnnotations(r) }

// DenialReason returns the reason of the denial in err's chain, and whether there
// is one. An error that wraps a denial is still a denial, with the same reason.
func DenialReason(err error) (reason string, denied bool) { return inside.DenialReason(err) }
