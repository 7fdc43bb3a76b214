// Package host is for the code that runs extensions: the webhooks, the manager and
// testing/admit. Authors of extensions use package extension alone.
//
// [PartsOf] sorts the parts of an extension by what their host does with them.
// [Open] gives access to a handler. [Warnings] and [AuditAnnotations] return what a
// handler added to a request.
package host

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/bridge"
)

// inside has the unexported parts of package extension.
var inside = bridge.Inside.(interface {
	HandlerOf(e extension.Extension, mgr extension.Manager) *extension.Handler
	Observed(h *extension.Handler, saw func(before, after runtime.Object, wrote bool, response *admission.Response)) *extension.Handler
	Value(h *extension.Handler) any
	Name(h *extension.Handler) string
	Scope(h *extension.Handler) extension.Scope
	Mutates(h *extension.Handler) bool
	Type(h *extension.Handler) reflect.Type
	Admit(h *extension.Handler) func(context.Context, runtime.Object, *extension.Request) error
	Respond(h *extension.Handler) func(context.Context, runtime.Object, *extension.Request) admission.Response
	Watched(w *extension.KindWatcher) (value any, scope extension.WatchScope, object client.Object)
	ConverterCRD(c *extension.Converter) string
	EachVersion(c *extension.Converter, each func(name string, typ reflect.Type, toHub, fromHub func(from, to client.Object) error))
	SetMode(r *extension.Request, mode extension.Mode)
	Warnings(r *extension.Request) []string
	AuditAnnotations(r *extension.Request) map[string]string
	DenialReason(err error) (reason string, denied bool)
})

// Handler gives access to an extension.Handler. A Mutator or a Validator has Admit.
// An Extension, which makes its own response, has Respond. The other one is nil. Both
// take an object of the handler's type.
type Handler struct {
	*extension.Handler
	// Name is the handler's Go type. It identifies the handler in logs, metrics and
	// errors.
	Name string
	// AuditName is the Name or, in a webhook with several handlers of that name, the Name
	// with its ordinal. The keys of audit annotations begin with it.
	AuditName string
	// Scope is the author's scope, without defaults.
	Scope extension.Scope
	// Mutates reports whether the handler may change the object.
	Mutates bool

	Admit   func(ctx context.Context, obj runtime.Object, req *extension.Request) error
	Respond func(ctx context.Context, obj runtime.Object, req *extension.Request) admission.Response
	// Kinds are those that the handler's type stands for, if [Handler.KindsOf] was asked; none if
	// it takes every kind.
	Kinds []schema.GroupVersionKind
	// Witness is nil unless the handler is one.
	Witness extension.Witness

	value any
	typ   reflect.Type
}

// Open gives access to a handler.
func Open(h *extension.Handler) *Handler {
	witness, _ := inside.Value(h).(extension.Witness)
	return &Handler{
		Handler: h, Witness: witness, Name: inside.Name(h), AuditName: inside.Name(h), Scope: inside.Scope(h), Mutates: inside.Mutates(h),
		Admit: inside.Admit(h), Respond: inside.Respond(h), value: inside.Value(h), typ: inside.Type(h),
	}
}

// NewObject returns an empty object of the handler's type. It returns nil if the
// handler takes a runtime.Object: then the object's kind decides the type.
func (h *Handler) NewObject() runtime.Object {
	if h.typ.Kind() != reflect.Pointer {
		return nil
	}
	return reflect.New(h.typ.Elem()).Interface().(runtime.Object)
}

// Extension returns the Extension that the handler was made of, if it was.
func (h *Handler) Extension() (extension.Extension, bool) {
	e, is := h.value.(extension.Extension)
	return e, is && h.Respond != nil
}

// HandlerOf returns a mutating Handler for an Extension. Its scope comes from the
// Scope method, if the Extension has one.
func HandlerOf(e extension.Extension, mgr extension.Manager) *extension.Handler {
	return inside.HandlerOf(e, mgr)
}

// Observed returns a Handler that does what h does and, after each call, tells saw how
// h found and left its object, whether it wrote to that of its request, and what it responded:
// nil unless h is an Extension. Each call costs two copies of the object.
func Observed(h *extension.Handler, saw func(before, after runtime.Object, wrote bool, response *admission.Response)) *extension.Handler {
	return inside.Observed(h, saw)
}

// SetMode sets what Request.Mode returns.
func SetMode(r *extension.Request, mode extension.Mode) { inside.SetMode(r, mode) }

// Warnings returns the warnings that extensions added to a request, in order.
func Warnings(r *extension.Request) []string { return inside.Warnings(r) }

// AuditAnnotations returns the audit annotations that extensions added to a request.
func AuditAnnotations(r *extension.Request) map[string]string { return inside.AuditAnnotations(r) }

// DenialReason reports whether err is or wraps a denial, and returns the denial's
// reason.
func DenialReason(err error) (reason string, denied bool) { return inside.DenialReason(err) }
