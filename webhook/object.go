package webhook

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/patch"
)

// object is the object of a request as it passes from handler to handler. It is
// held as JSON, which keeps every field, and as the Go type of the current handler.
// The changes of a Mutator are carried over from the Go type to the JSON when the
// JSON is needed: by an Extension, by a handler of another type, at the end of the
// chain.
type object struct {
	request *admissionv1.AdmissionRequest
	scheme  *runtime.Scheme
	// mutable is false in a validating webhook, where changes are ignored.
	mutable bool
	// received is the object as it was received, document the object with the
	// operations of applied.
	received []byte
	document patch.Document
	// text is the memory of received, if that is the library's own.
	text    *[]byte
	applied jsonpatch.Patch
	// typed is the object that handlers see, base a copy of what document decodes to.
	typed runtime.Object
	base  patch.Copy
	// pending has the changes of typed that are not in the document yet.
	pending []patch.Operation
}

// newObject returns the object of a request. checked is one of its objects, the one
// that the request is about unless the client is not an API server.
func newObject(request *admissionv1.AdmissionRequest, checked wire.Text, scheme *runtime.Scheme, mutable bool) object {
	raw := request.Object.Raw
	if request.Operation == admissionv1.Delete {
		raw = request.OldObject.Raw
	}
	if len(raw) == 0 || len(checked.Raw) != len(raw) || &checked.Raw[0] != &raw[0] {
		checked = wire.Text{Raw: raw}
	}
	return object{request: request, scheme: scheme, mutable: mutable, received: raw, document: documentOf(request, checked)}
}

// own copies the JSON, since the handler that gets the request may change it there.
func (o *object) own() {
	if len(o.received) > maxPooledText {
		o.received = bytes.Clone(o.received)
	} else {
		o.text = texts.Get().(*[]byte)
		*o.text = append((*o.text)[:0], o.received...)
		o.received = *o.text
	}
	o.document.Raw = o.received
}

// release ends the use of the memory that serves one object after the other. The
// operations share none of it.
func (o *object) release() {
	o.base.Release()
	if o.text != nil {
		texts.Put(o.text)
		o.text = nil
	}
}

// texts has memory for the library's own copies of objects. Handlers never see it.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledText keeps a rare large object from occupying memory.
const maxPooledText = 128 << 10

// as returns the object as the type that a handler takes. For an Extension, the
// request has the changes of the handlers before it too.
func (o *object) as(handler *host.Handler) (runtime.Object, error) {
	if kind := schema.GroupVersionKind(o.request.Kind); len(handler.Kinds) > 0 && !slices.Contains(handler.Kinds, kind) {
		return nil, fmt.Errorf("it takes a %s, and the request has a %s: use the type of that kind, or the rules of that type", handler.Kinds[0], kind)
	}
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
// request's kind. On CONNECT that is the kind of the options.
func (o *object) ofKind() runtime.Object {
	into, err := o.scheme.New(schema.GroupVersionKind(o.request.Kind))
	if err != nil {
		return &unstructured.Unstructured{}
	}
	return into
}

func (o *object) decode(into runtime.Object) error {
	if len(o.document.Raw) == 0 {
		return failure.New(http.StatusBadRequest, "%s of %s carries no object", o.request.Operation, o.request.Resource.Resource)
	}
	if err := o.document.Decode(into); err != nil {
		return failure.New(http.StatusBadRequest, "decoding %s %s/%s into %T: %w", o.request.Kind.Kind, o.request.Namespace, o.request.Name, into, err)
	}
	o.typed = into
	o.remember()
	return nil
}

// remember copies typed, which is the same as the document.
func (o *object) remember() {
	o.base.Release()
	if o.mutable {
		o.base = patch.CopyOf(o.typed)
	}
}

// note records the changes of a Mutator, and reports whether there are any. It
// compares with the pending changes instead of a copy from before the call, which
// saves the copy: equal objects have equal differences.
func (o *object) note() (changed bool, err error) {
	ops, err := o.document.Diff(o.base.Object, o.typed)
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

// flush applies the changes of the Go type to the JSON.
func (o *object) flush() error {
	if len(o.pending) == 0 {
		return nil
	}
	if err := o.applyPending(); err != nil {
		return err
	}
	o.remember()
	return nil
}

func (o *object) applyPending() error {
	next, err := jsonpatch.Decode(appendPatch(nil, o.pending))
	if err != nil {
		return err
	}
	o.pending = nil
	return o.apply(next)
}

var errDeleted = errors.New("an object that is being deleted cannot be changed")

// apply applies a patch to the JSON, as the API server will do: all operations so far
// at once to the object that it sent. One after the other they could make something
// else, since the library treats a null that it wrote differently from one it read.
func (o *object) apply(next jsonpatch.Patch) error {
	if o.request.Operation == admissionv1.Delete {
		return errDeleted
	}
	all := o.applied.Then(next)
	raw, err := all.Apply(o.received)
	if err != nil {
		return err
	}
	o.applied, o.document = all, documentOf(o.request, wire.Text{Raw: raw})
	o.request.Object.Raw = raw
	return nil
}

// take applies the patch of an Extension's response, so that the next handler sees
// it, and reports whether there is one. Changes to the Pod itself are dropped: only
// the response counts.
func (o *object) take(response *admission.Response) (changed bool, err error) {
	next, err := patchOf(response)
	if err != nil {
		return false, err
	}
	into := reflect.TypeOf(o.typed)
	o.typed = nil
	o.base.Release()
	if next.Len() == 0 {
		return false, nil
	}
	if err := o.apply(next); err != nil {
		return false, err
	}
	return true, o.redecode(reflect.New(into.Elem()).Interface().(runtime.Object))
}

// redecode decodes the patched object, as the API server does next. The object must
// still be what it was.
func (o *object) redecode(into runtime.Object) error {
	const failure = "the patch of the response makes an object that the API server refuses: "
	kind, err := serializer.DefaultMetaFactory.Interpret(o.document.Raw)
	if err != nil {
		return fmt.Errorf(failure+"%w", err)
	}
	was := schema.GroupVersionKind(o.request.Kind)
	if changed := (schema.GroupVersionKind{
		Group: kind.Group, Version: cmp.Or(kind.Version, was.Version), Kind: cmp.Or(kind.Kind, was.Kind),
	}); changed != was {
		return fmt.Errorf(failure+"it is a %s", changed)
	}
	if err := o.decode(into); err != nil {
		return errors.New(failure + err.Error()) // without its code, for it is not the client's fault
	}
	return nil
}

// patch returns the JSON of the operations of all handlers on the object as it was
// received; nil if there are none.
func (o *object) patch() ([]byte, error) {
	if o.applied.Len() > 0 && len(o.pending) > 0 {
		// What is made of an Extension's patch is applied once as a whole.
		if err := o.applyPending(); err != nil {
			return nil, err
		}
	}
	switch {
	case o.applied.Len() > 0:
		return o.applied.Append(nil), nil
	case len(o.pending) > 0:
		return appendPatch(nil, o.pending), nil
	}
	return nil, nil
}
