package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	jsonpatchapply "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/patch"
)

// object is the object of a request as it goes from handler to handler. It is
// held as JSON, in which no field is ever lost, and as the Go type that the
// handler at hand wants. What a Mutator changed is carried from the Go type to
// the JSON when someone needs the JSON: an Extension, a handler that wants
// another type, the end of the chain.
type object struct {
	request *admissionv1.AdmissionRequest
	scheme  *runtime.Scheme
	// mutable is false in a validating webhook, where a change is no change.
	mutable bool
	// document is the object with all of ops applied.
	document patch.Document
	ops      []patch.Operation
	// typed is what handlers see, base what the document decodes to.
	typed, base runtime.Object
	// pending is what was changed in typed and not in the document yet.
	pending []patch.Operation
}

func newObject(request *admissionv1.AdmissionRequest, scheme *runtime.Scheme, mutable bool) object {
	raw := request.Object.Raw
	if request.Operation == admissionv1.Delete {
		raw = request.OldObject.Raw
	}
	return object{request: request, scheme: scheme, mutable: mutable, document: documentOf(request, raw)}
}

// as returns the object as the type that a handler takes. An Extension finds
// the changes of those before it in the request too.
func (o *object) as(handler *host.Handler) (runtime.Object, error) {
	into := handler.NewObject()
	if into == nil {
		into = o.ofKind()
	}
	known := o.typed != nil && reflect.TypeOf(o.typed) == reflect.TypeOf(into)
	if known && handler.Respond == nil {
		return o.typed, nil
	}
	if err := o.flush(); err != nil {
		return nil, err
	}
	if known {
		return o.typed, nil
	}
	if err := o.decode(into); err != nil {
		return nil, err
	}
	return o.typed, nil
}

// ofKind returns an empty object of the Go type that the scheme has for the
// kind at hand. On CONNECT the request's kind is that of the options.
func (o *object) ofKind() runtime.Object {
	into, err := o.scheme.New(schema.GroupVersionKind(o.request.Kind))
	if err != nil {
		return &unstructured.Unstructured{}
	}
	return into
}

func (o *object) decode(into runtime.Object) error {
	if len(o.document.Raw) == 0 {
		return badRequest(http.StatusBadRequest, "%s of %s carries no object", o.request.Operation, o.request.Resource.Resource)
	}
	if err := wire.Decode(o.document.Raw, into); err != nil {
		return badRequest(http.StatusBadRequest, "decoding %s %s/%s into %T: %w", o.request.Kind.Kind, o.request.Namespace, o.request.Name, into, err)
	}
	o.typed = into
	if o.mutable {
		o.base = copyOf(into)
	}
	return nil
}

// copyOf returns a deep copy for a later comparison, which takes no note of
// managed fields. They are often the larger half of an object, and shared.
func copyOf(obj runtime.Object) runtime.Object {
	accessor, isTyped := obj.(metav1.ObjectMetaAccessor)
	if _, isTree := obj.(runtime.Unstructured); isTree || !isTyped {
		return obj.DeepCopyObject()
	}
	meta := accessor.GetObjectMeta()
	managed := meta.GetManagedFields()
	meta.SetManagedFields(nil)
	copied := obj.DeepCopyObject()
	meta.SetManagedFields(managed)
	copied.(metav1.ObjectMetaAccessor).GetObjectMeta().SetManagedFields(managed)
	return copied
}

// note takes note of what a Mutator changed, and reports whether it changed
// anything. Comparing with what is pending already, instead of with a copy from
// before the call, spares the copy: equal objects have equal differences.
func (o *object) note() (changed bool, err error) {
	ops, err := o.document.Diff(o.base, o.typed)
	if err != nil {
		return false, err
	}
	if len(ops) > 0 && o.request.Operation == admissionv1.Delete {
		return false, errDeleted
	}
	changed = !slices.EqualFunc(ops, o.pending, patch.Operation.Equal)
	o.pending = ops
	return changed, nil
}

// flush carries the changes of the Go type over to the JSON.
func (o *object) flush() error {
	if len(o.pending) == 0 {
		return nil
	}
	if err := o.apply(o.pending); err != nil {
		return err
	}
	o.pending, o.base = nil, copyOf(o.typed)
	return nil
}

var errDeleted = errors.New("changed an object that is being deleted")

func (o *object) apply(ops []patch.Operation) error {
	if o.request.Operation == admissionv1.Delete {
		return errDeleted
	}
	decoded, err := jsonpatchapply.DecodePatch(appendPatch(nil, ops))
	if err != nil {
		return fmt.Errorf("decoding the patch: %w", err)
	}
	raw, err := decoded.Apply(o.document.Raw)
	if err != nil {
		return fmt.Errorf("applying the patch: %w", err)
	}
	o.document = documentOf(o.request, raw)
	o.request.Object.Raw = raw
	o.ops = append(o.ops, ops...)
	return nil
}

// take takes the response of an Extension, applies its patch so that the next
// handler sees it, and reports whether it has one. What the Extension did to the
// Pod itself is dropped: its response is what counts.
func (o *object) take(response *admission.Response) (changed bool, err error) {
	ops, err := operationsOf(response.Patches)
	if err != nil {
		return false, err
	}
	if len(ops) == 0 && len(response.Patch) > 0 {
		if err := json.Unmarshal(response.Patch, &ops); err != nil {
			return false, fmt.Errorf("decoding the patch of the response: %w", err)
		}
	}
	o.typed = nil
	if len(ops) == 0 {
		return false, nil
	}
	return true, o.apply(ops)
}

// changes returns the operations that lead from the object as it came to what
// the handlers made of it.
func (o *object) changes() []patch.Operation {
	if len(o.ops) == 0 {
		return o.pending
	}
	return append(o.ops, o.pending...)
}
