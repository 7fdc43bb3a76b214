package extension

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Handler is a [Mutator] or [Validator] with its [Scope]: what a manager's
// AddExtension takes. Make one with [Mutating] or [Validating].
type Handler struct {
	// value is what the Handler was made of, which may implement more.
	value   any
	name    string
	scope   Scope
	mutates bool
	typ     reflect.Type

	// Exactly one of the two is set. respond is the form of an Extension, which
	// makes its own patches.
	admit   func(ctx context.Context, obj runtime.Object, req *Request) error
	respond func(ctx context.Context, obj runtime.Object, req *Request) admission.Response
}

// Mutating makes a Handler of a Mutator.
func Mutating[T runtime.Object](m Mutator[T], scope Scope) *Handler {
	return &Handler{
		value: m, name: nameOf(m), scope: scope, mutates: true, typ: reflect.TypeFor[T](),
		admit: func(ctx context.Context, obj runtime.Object, req *Request) error {
			return m.Mutate(ctx, obj.(T), req)
		},
	}
}

// Validating makes a Handler of a Validator.
func Validating[T runtime.Object](v Validator[T], scope Scope) *Handler {
	return &Handler{
		value: v, name: nameOf(v), scope: scope, typ: reflect.TypeFor[T](),
		admit: func(ctx context.Context, obj runtime.Object, req *Request) error {
			return v.Validate(ctx, obj.(T), req)
		},
	}
}

// MutatingFunc is [Mutating] for a plain function. Its name, in logs and metrics, is that
// of the scope, if that has one.
func MutatingFunc[T runtime.Object](mutate func(ctx context.Context, obj T, req *Request) error, scope Scope) *Handler {
	return Mutating(MutatorFunc[T](mutate), scope).named(scope.Name)
}

// ValidatingFunc is [Validating] for a plain function. Its name, in logs and metrics, is
// that of the scope, if that has one.
func ValidatingFunc[T runtime.Object](validate func(ctx context.Context, obj T, req *Request) error, scope Scope) *Handler {
	return Validating(ValidatorFunc[T](validate), scope).named(scope.Name)
}

func (h *Handler) named(name string) *Handler {
	if name != "" {
		h.name = name
	}
	return h
}

// nameOf returns the Go type of a handler without the pointer: addenv.AddEnv. A
// function has no type of its own; its name is that of the form, such as
// extension.MutatorFunc.
func nameOf(handler any) string {
	name := strings.TrimLeft(fmt.Sprintf("%T", handler), "*")
	if bracket := strings.IndexByte(name, '['); bracket >= 0 {
		name = name[:bracket]
	}
	return name
}
