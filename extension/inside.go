package extension

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/bridge"
)

// inside is what the host of extensions sees and authors do not. Package
// internal/host has the documentation of its methods.
type inside struct{}

func init() { bridge.Inside = inside{} }

func (inside) HandlerOf(e Extension, mgr Manager) *Handler {
	var scope Scope
	if scoped, ok := e.(Scoped); ok {
		scope = scoped.Scope()
	}
	return &Handler{
		value: e, name: nameOf(e), scope: scope, mutates: true, typ: reflect.TypeFor[*corev1.Pod](),
		respond: func(ctx context.Context, obj runtime.Object, req *Request) admission.Response {
			return e.Handle(ctx, mgr, obj.(*corev1.Pod), req.Request)
		},
	}
}

func (inside) Observed(h *Handler, saw func(before, after runtime.Object, wrote bool, response *admission.Response)) *Handler {
	observed := *h
	if h.admit != nil {
		observed.admit = func(ctx context.Context, obj runtime.Object, req *Request) error {
			before, raw := obj.DeepCopyObject(), bytes.Clone(req.Object.Raw)
			err := h.admit(ctx, obj, req)
			saw(before, obj, !bytes.Equal(raw, req.Object.Raw) || req.Object.Object != nil, nil)
			return err
		}
	}
	if h.respond != nil {
		observed.respond = func(ctx context.Context, obj runtime.Object, req *Request) admission.Response {
			before := obj.DeepCopyObject()
			response := h.respond(ctx, obj, req)
			saw(before, obj, false, &response)
			return response
		}
	}
	return &observed
}

func (inside) Value(h *Handler) any         { return h.value }
func (inside) Name(h *Handler) string       { return h.name }
func (inside) Scope(h *Handler) Scope       { return h.scope }
func (inside) Mutates(h *Handler) bool      { return h.mutates }
func (inside) Type(h *Handler) reflect.Type { return h.typ }

func (inside) Admit(h *Handler) func(context.Context, runtime.Object, *Request) error {
	return h.admit
}

func (inside) Respond(h *Handler) func(context.Context, runtime.Object, *Request) admission.Response {
	return h.respond
}

func (inside) Watched(w *KindWatcher) (value any, scope WatchScope, object client.Object) {
	return w.value, w.scope, w.object
}

func (inside) ConverterCRD(c *Converter) string { return c.crd }

func (inside) EachVersion(c *Converter, each func(name string, typ reflect.Type, toHub, fromHub func(from, to client.Object) error)) {
	for _, v := range c.versions {
		each(v.name, v.typ, v.toHub, v.fromHub)
	}
}

func (inside) SetMode(r *Request, mode Mode) { r.mode = mode }

func (inside) Warnings(r *Request) []string                  { return slices.Clone(r.warnings) }
func (inside) AuditAnnotations(r *Request) map[string]string { return maps.Clone(r.audit) }

func (inside) DenialReason(err error) (reason string, denied bool) {
	if d, ok := errors.AsType[*denial](err); ok {
		return d.reason, true
	}
	return "", false
}
