package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	operation "gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/patch"
)

// PatchFrom returns the response that turns the object of the request into
// after, which must have the Go type that its author decoded the object into.
// Fields that this type does not know stay unchanged. A nil object is an error, which
// the failure policy decides on.
func PatchFrom(req admission.Request, after runtime.Object) admission.Response {
	if v := reflect.ValueOf(after); v.Kind() != reflect.Pointer || v.IsNil() {
		return admission.Errored(http.StatusInternalServerError, errNoObject)
	}
	raw := req.Object.Raw
	if req.Operation == admissionv1.Delete {
		raw = req.OldObject.Raw // the only object; a change to it is an error later
	}
	before := reflect.New(reflect.TypeOf(after).Elem()).Interface().(runtime.Object)
	document := documentOf(&req.AdmissionRequest, wire.Text{Raw: raw})
	if err := wire.Decode(raw, before); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding %s %s/%s: %w", req.Resource.Resource, req.Namespace, req.Name, err))
	}
	ops, err := document.Diff(before, after)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	patches := make([]operation.Operation, len(ops))
	for i, op := range ops {
		patches[i] = operation.Operation{Operation: op.Op, Path: op.Path}
		if op.Value != nil {
			patches[i].Value = op.Value
		}
	}
	return admission.Patched("", patches...)
}

var errNoObject = errors.New("no patch can be made of a nil object: pass the object of the request with your changes, " +
	"or return admission.Allowed to leave it as it is")

// documentOf returns the document of a request's object, of which it has the JSON.
func documentOf(request *admissionv1.AdmissionRequest, text wire.Text) patch.Document {
	return patch.Document{Text: text, Options: patch.Options{IgnoreStatus: ignoresStatus(request)}}
}

// appendPatch appends the JSON of a patch to dst.
func appendPatch(dst []byte, ops []patch.Operation) []byte { return patch.Append(dst, ops) }

// patchOf returns the patch of an Extension's response, from what controller-runtime
// would send: Patches if there are any (see Complete of admission.Response), else
// Patch. An API server accepts Patch and PatchType only together
// (VerifyAdmissionResponse in k8s.io/apiserver,
// pkg/admission/plugin/webhook/request/admissionreview.go).
func patchOf(response *admission.Response) (jsonpatch.Patch, error) {
	text := response.Patch
	switch {
	case len(response.Patches) > 0:
		encoded, err := json.Marshal(response.Patches)
		if err != nil {
			return jsonpatch.Patch{}, fmt.Errorf("encoding the patch of the response: %w", failure.OfHandler(err))
		}
		text = encoded
	case len(text) == 0 && response.PatchType == nil:
		return jsonpatch.Patch{}, nil
	case len(text) == 0:
		return jsonpatch.Patch{}, errors.New("the response has a PatchType, but no Patch; return Patches, or neither of the two")
	case response.PatchType == nil:
		return jsonpatch.Patch{}, errors.New("the response has a Patch, but no PatchType; return Patches, or set PatchType to JSONPatch")
	}
	patch, err := jsonpatch.Decode(text)
	switch kind := response.PatchType; {
	case err != nil:
		return patch, err
	case patch.Len() > jsonpatch.MaxOperations:
		return patch, fmt.Errorf("the patch of the response has %d operations, at most %d are applied", patch.Len(), jsonpatch.MaxOperations)
	case len(response.Patches) > 0:
		return patch, nil
	case *kind == "" || *kind != admissionv1.PatchTypeJSONPatch && patch.Len() > 0: // in this order, as an API server
		return patch, fmt.Errorf("the response has the PatchType %q; the only one is JSONPatch", *kind)
	}
	return patch, nil
}
