package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"

	jsonpatchapply "github.com/evanphx/json-patch/v5"
	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook/internal/patch"
)

// chain runs the handlers of one webhook on one object after the other.
type chain struct {
	mutating bool
	handlers []*extension.Admission
	scheme   *runtime.Scheme
	log      *zap.Logger
}

// run returns the answer, or the error of the handler that failed. Handlers
// after a denial or a failure do not run.
func (c *chain) run(ctx context.Context, request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	obj := newObject(request, c.scheme, c.mutating)
	for _, handler := range c.handlers {
		result, err := c.call(ctx, handler, obj)
		response.Warnings = append(response.Warnings, result.Warnings...)
		for key, value := range result.AuditAnnotations {
			if response.AuditAnnotations == nil {
				response.AuditAnnotations = map[string]string{}
			}
			response.AuditAnnotations[key] = value
		}
		if err != nil {
			return nil, fmt.Errorf("extension %s: %w", handler.Name(), err)
		}
		if !result.Allowed {
			response.Allowed = false
			response.Result = result.Result
			return response, nil
		}
	}
	ops, err := obj.changes()
	if err != nil {
		return nil, err
	}
	if len(ops) > 0 {
		patchType := admissionv1.PatchTypeJSONPatch
		response.PatchType = &patchType
		response.Patch = appendPatch(nil, ops)
	}
	return response, nil
}

// call runs one handler. A panic is that handler's error, and nobody else's.
func (c *chain) call(ctx context.Context, handler *extension.Admission, obj *object) (response admissionv1.AdmissionResponse, err error) {
	if err := ctx.Err(); err != nil {
		return response, err
	}
	typed, err := obj.as(handler)
	if err != nil {
		return response, err
	}
	req := extension.NewRequest(admission.Request{AdmissionRequest: *obj.request})
	defer func() {
		if reason := recover(); reason != nil {
			c.log.Error("extension panicked", zap.String("extension", handler.Name()), zap.String("uid", string(obj.request.UID)),
				zap.Any("panic", reason), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	if handler.Responds() {
		return obj.take(handler.Respond(ctx, typed, req))
	}
	err = handler.Admit(ctx, typed, req)
	response.Warnings, response.AuditAnnotations = req.Warnings(), req.AuditAnnotations()
	reason, denied := extension.DenialReason(err)
	if denied {
		response.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: reason}
		return response, nil
	}
	response.Allowed = err == nil
	return response, err
}

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
	// raw is the object with all of ops applied.
	raw []byte
	ops []patch.Operation
	// typed is what handlers see, base what raw decodes to.
	typed, base runtime.Object
}

func newObject(request *admissionv1.AdmissionRequest, scheme *runtime.Scheme, mutable bool) *object {
	// A copy, because an Extension gets the request with the changes of those
	// before it.
	copied := *request
	o := &object{request: &copied, scheme: scheme, mutable: mutable, raw: request.Object.Raw}
	if request.Operation == admissionv1.Delete {
		o.raw = request.OldObject.Raw
	}
	return o
}

// as returns the object as the type that a handler takes. An Extension finds
// the changes of those before it in the request too.
func (o *object) as(handler *extension.Admission) (runtime.Object, error) {
	into := handler.NewObject()
	if into == nil {
		into = o.ofKind()
	}
	known := o.typed != nil && reflect.TypeOf(o.typed) == reflect.TypeOf(into)
	if known && !handler.Responds() {
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
	if len(o.raw) == 0 {
		return badRequest(http.StatusBadRequest, "%s of %s carries no object", o.request.Operation, o.request.Resource.Resource)
	}
	if err := extension.Decode(o.raw, into); err != nil {
		return badRequest(http.StatusBadRequest, "decoding %s %s/%s into %T: %w", o.request.Kind.Kind, o.request.Namespace, o.request.Name, into, err)
	}
	o.typed = into
	if o.mutable {
		o.base = into.DeepCopyObject()
	}
	return nil
}

// flush carries the changes of the Go type over to the JSON.
func (o *object) flush() error {
	ops, err := o.pending()
	if err != nil || len(ops) == 0 {
		return err
	}
	if err := o.apply(ops); err != nil {
		return err
	}
	o.base = o.typed.DeepCopyObject()
	return nil
}

// pending returns what was changed in the Go type and not in the JSON.
func (o *object) pending() ([]patch.Operation, error) {
	if o.typed == nil || !o.mutable {
		return nil, nil
	}
	ops, err := diff(o.request, o.raw, o.base, o.typed)
	if len(ops) > 0 && o.request.Operation == admissionv1.Delete {
		return nil, errDeleted
	}
	return ops, err
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
	raw, err := decoded.Apply(o.raw)
	if err != nil {
		return fmt.Errorf("applying the patch: %w", err)
	}
	o.raw = raw
	o.request.Object.Raw = raw
	o.ops = append(o.ops, ops...)
	return nil
}

// take takes the response of an Extension, and applies its patch so that the
// next handler sees it. What the Extension did to the Pod itself is dropped:
// its response is what counts.
func (o *object) take(response admission.Response) (admissionv1.AdmissionResponse, error) {
	result := response.AdmissionResponse
	if result.Result == nil {
		result.Allowed = true
	}
	if !result.Allowed {
		if result.Result.Code >= http.StatusInternalServerError {
			return result, errors.New(result.Result.Message)
		}
		if result.Result.Code == 0 {
			result.Result.Code = http.StatusForbidden
		}
		return result, nil
	}
	ops, err := operationsOf(response.Patches)
	if err != nil {
		return result, err
	}
	if len(ops) == 0 && len(response.Patch) > 0 {
		if err := json.Unmarshal(response.Patch, &ops); err != nil {
			return result, fmt.Errorf("decoding the patch of the response: %w", err)
		}
	}
	result.Allowed = true
	if len(ops) > 0 {
		if err := o.apply(ops); err != nil {
			return result, err
		}
	}
	o.typed = nil
	return result, nil
}

// changes returns the operations that lead from the object as it came to what
// the handlers made of it.
func (o *object) changes() ([]patch.Operation, error) {
	ops, err := o.pending()
	return append(o.ops, ops...), err
}
