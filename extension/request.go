package extension

import (
	"fmt"
	"reflect"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/wire"
)

// Request is the admission at hand: controller-runtime's request, as the API
// server sent it, with the methods that authors reach for. It is the handler's own,
// to change and to keep: no other handler sees it. Only one goroutine at a time may
// use it. The deadline of the handler's context is the time that is left to answer.
//
// Some fields are empty in some requests:
//
//   - Name on the CREATE of an object with metadata.generateName, in a mutating webhook: a
//     validating one has the name. Each DELETE of a collection, as of `kubectl delete
//     --all`, has the name of its object here; match conditions see an empty request.name;
//   - Namespace of what is in none, but for a Namespace, which is its own;
//   - Object on a DELETE, and OldObject on a CREATE and a CONNECT; on a CONNECT, Object
//     is the options of the connection, and Name that of the Pod, Service or Node;
//   - Options on a CONNECT.
type Request struct {
	admission.Request

	mode     Mode // empty for Enforce
	warnings []string
	audit    map[string]string
}

// DryRun reports whether the request will not be persisted. If so, the handler
// must have no effect outside the object.
func (r *Request) DryRun() bool {
	return r.Request.DryRun != nil && *r.Request.DryRun
}

// User returns the user who makes the request, as the API server authenticated
// them.
func (r *Request) User() authenticationv1.UserInfo {
	return r.UserInfo
}

// Old decodes the object as it was before an UPDATE or DELETE into into. Other
// operations have no old object, which is an error.
func (r *Request) Old(into runtime.Object) error {
	if len(r.OldObject.Raw) == 0 {
		return fmt.Errorf("%s of %s %s/%s has no old object", r.Operation, r.Resource.Resource, r.Namespace, r.Name)
	}
	if err := wire.Decode(r.OldObject.Raw, into); err != nil {
		return fmt.Errorf("decoding the old object of %s %s/%s: %w", r.Resource.Resource, r.Namespace, r.Name, err)
	}
	return nil
}

// Old returns the object as it was before an UPDATE or DELETE. T is a pointer to its
// type, such as *corev1.Pod or *unstructured.Unstructured. Other operations have no old
// object, which is an error, as is a T that is no such pointer.
func Old[T runtime.Object](req *Request) (T, error) {
	var none T
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Pointer {
		return none, fmt.Errorf("extension.Old[%s]: the type must be a pointer, such as *corev1.Pod or *unstructured.Unstructured", typ)
	}
	old := reflect.New(typ.Elem()).Interface().(T)
	if err := req.Old(old); err != nil {
		return none, err
	}
	return old, nil
}

// Warnf adds a warning, which the client shows to its user whatever the outcome.
// The API server recommends at most 120 characters. A warning is cut to 256, all
// warnings of a request together to 4096, and a control character becomes a space.
func (r *Request) Warnf(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// AddAuditAnnotation adds an annotation to the API server's audit event of this
// request. Its key there is WEBHOOK/EXTENSION.KEY. Extensions in one webhook never
// overwrite each other's annotations: of several with one name, the second is
// EXTENSION-2. A character that a key cannot have becomes a dash. EXTENSION.KEY has at
// most 63 characters; of a longer one the end is kept, after a digest of the whole. A
// second value of one extension for a key replaces the first.
func (r *Request) AddAuditAnnotation(key, value string) {
	if r.audit == nil {
		r.audit = map[string]string{}
	}
	r.audit[key] = value
}
