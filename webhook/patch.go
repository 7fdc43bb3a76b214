package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"

	jsonpatch "gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/patch"
)

// PatchFrom returns the response that turns the object of the request into
// after, which must have the Go type that its author decoded the object into.
// Fields that this type does not know stay unchanged.
func PatchFrom(req admission.Request, after runtime.Object) admission.Response {
	raw := req.Object.Raw
	if req.Operation == admissionv1.Delete {
		raw = req.OldObject.Raw // the only object; a change to it is an error later
	}
	before := reflect.New(reflect.TypeOf(after).Elem()).Interface().(runtime.Object)
	if err := wire.Decode(raw, before); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding %s %s/%s: %w", req.Resource.Resource, req.Namespace, req.Name, err))
	}
	document := documentOf(&req.AdmissionRequest, raw)
	ops, err := document.Diff(before, after)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	patches := make([]jsonpatch.Operation, len(ops))
	for i, op := range ops {
		patches[i] = jsonpatch.Operation{Operation: op.Op, Path: op.Path}
		if op.Value != nil {
			patches[i].Value = op.Value
		}
	}
	return admission.Patched("", patches...)
}

// documentOf returns the document of a request's object, whose JSON is raw.
func documentOf(request *admissionv1.AdmissionRequest, raw []byte) patch.Document {
	return patch.Document{Raw: raw, Options: patch.Options{IgnoreStatus: ignoresStatus(request)}}
}

// appendPatch appends the JSON of a patch to dst.
func appendPatch(dst []byte, ops []patch.Operation) []byte { return patch.Append(dst, ops) }

// operationsOf returns the operations of an Extension's response.
func operationsOf(patches []jsonpatch.Operation) ([]patch.Operation, error) {
	ops := make([]patch.Operation, len(patches))
	for i, p := range patches {
		ops[i] = patch.Operation{Op: p.Operation, Path: p.Path}
		if p.Operation == "remove" {
			continue
		}
		value, err := json.Marshal(p.Value)
		if err != nil {
			return nil, fmt.Errorf("encoding the patch of the response: %s %s: %w", p.Operation, p.Path, err)
		}
		ops[i].Value = value
	}
	return ops, nil
}
