package extension

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Handler is a Mutator, Validator or Extension with its scope: the one unit that the dispatcher
// knows, whatever form the author chose. Make one with [Mutating], [Validating]
// or [FromExtension].
type Handler struct {
	// handler is what the Handler was made of, which may implement more.
	handler any
	name    string
	scope   Scope
	mutates bool
	typ     reflect.Type

	// Exactly one of the two is set. respond is the form of an Extension: it
	// makes its own patches.
	admit   func(ctx context.Context, obj runtime.Object, req *Request) error
	respond func(ctx context.Context, obj runtime.Object, req *Request) admission.Response
}

// Mutating makes a Handler of a Mutator.
func Mutating[T runtime.Object](m Mutator[T], scope Scope) *Handler {
	return &Handler{
		handler: m, name: nameOf(m), scope: scope, mutates: true, typ: reflect.TypeFor[T](),
		admit: func(ctx context.Context, obj runtime.Object, req *Request) error {
			return m.Mutate(ctx, obj.(T), req)
		},
	}
}

// Validating makes a Handler of a Validator.
func Validating[T runtime.Object](v Validator[T], scope Scope) *Handler {
	return &Handler{
		handler: v, name: nameOf(v), scope: scope, typ: reflect.TypeFor[T](),
		admit: func(ctx context.Context, obj runtime.Object, req *Request) error {
			return v.Validate(ctx, obj.(T), req)
		},
	}
}

// FromExtension makes a Handler of an Extension: mutating, with the scope of
// its Scope method if it has one.
func FromExtension(e Extension, mgr Manager) *Handler {
	var scope Scope
	if scoped, ok := e.(Scoped); ok {
		scope = scoped.Scope()
	}
	return &Handler{
		handler: e, name: nameOf(e), scope: scope, mutates: true, typ: reflect.TypeFor[*corev1.Pod](),
		respond: func(ctx context.Context, obj runtime.Object, req *Request) admission.Response {
			return e.Handle(ctx, mgr, obj.(*corev1.Pod), req.Request)
		},
	}
}

// Name names the handler in logs, metrics and errors: its Go type.
func (a *Handler) Name() string { return a.name }

// Scope returns the scope as the author gave it, defaults not yet filled in.
func (a *Handler) Scope() Scope { return a.scope }

// Mutates reports whether the handler may change the object.
func (a *Handler) Mutates() bool { return a.mutates }

// Responds reports whether the handler makes its own response, as an
// [Extension] does, and is to be called by Respond instead of Admit.
func (a *Handler) Responds() bool { return a.respond != nil }

// NewObject returns an empty object of the handler's type, or nil when the
// handler takes a runtime.Object, whose type the object's kind decides.
func (a *Handler) NewObject() runtime.Object {
	if a.typ.Kind() != reflect.Pointer {
		return nil
	}
	return reflect.New(a.typ.Elem()).Interface().(runtime.Object)
}

// Admit calls a Mutator or Validator. obj must be of its type.
func (a *Handler) Admit(ctx context.Context, obj runtime.Object, req *Request) error {
	return a.admit(ctx, obj, req)
}

// Respond calls an Extension. obj must be of its type.
func (a *Handler) Respond(ctx context.Context, obj runtime.Object, req *Request) admission.Response {
	return a.respond(ctx, obj, req)
}

// Register tells the handler its host, if it wants to know ([Hosted]).
func (a *Handler) Register(mgr Manager) error {
	hosted, ok := a.handler.(Hosted)
	if !ok {
		return nil
	}
	if err := hosted.Register(mgr); err != nil {
		return fmt.Errorf("registering %s: %w", a.name, err)
	}
	return nil
}

// nameOf returns the Go type of a handler without the pointer: addenv.AddEnv.
// A function that was made a handler has no type of its own; its name is that
// of the form.
func nameOf(handler any) string {
	name := strings.TrimLeft(fmt.Sprintf("%T", handler), "*")
	if bracket := strings.IndexByte(name, '['); bracket >= 0 {
		name = name[:bracket]
	}
	return name
}
