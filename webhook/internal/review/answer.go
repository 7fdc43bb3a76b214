package review

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WriteResponse answers a request with its decision.
func WriteResponse(w http.ResponseWriter, response *admissionv1.AdmissionResponse) error {
	return write(w, http.StatusOK, func(dst []byte) ([]byte, error) { return appendReview(dst, response) })
}

// WriteFailure answers a request that has no decision. The package comment says why
// the answer is a Status.
func WriteFailure(w http.ResponseWriter, code int, err error) error {
	return write(w, code, func(dst []byte) ([]byte, error) {
		return appendJSON(dst, &metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure,
			Message:  err.Error(),
			Reason:   reasons[code],
			Code:     int32(code), //nolint:gosec // an HTTP status
		})
	})
}

var reasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusNotFound:              metav1.StatusReasonNotFound,
	http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
	http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError:   metav1.StatusReasonInternalError,
	http.StatusGatewayTimeout:        metav1.StatusReasonTimeout,
}

// appendReview appends the JSON of an AdmissionReview with a response. It writes the
// fields that nearly every answer has; encoding/json writes the others.
func appendReview(dst []byte, response *admissionv1.AdmissionResponse) ([]byte, error) {
	dst = append(dst, `{"kind":"AdmissionReview","apiVersion":"`+apiVersion+`","response":{"uid":`...)
	dst, err := jsontext.AppendQuote(dst, response.UID)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"allowed":`...)
	dst = strconv.AppendBool(dst, response.Allowed)
	if len(response.Patch) > 0 {
		dst = append(dst, `,"patchType":"JSONPatch","patch":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, response.Patch)
		dst = append(dst, '"')
	}
	if response.Result != nil {
		if dst, err = appendJSON(append(dst, `,"status":`...), response.Result); err != nil {
			return nil, err
		}
	}
	if len(response.AuditAnnotations) > 0 {
		if dst, err = appendJSON(append(dst, `,"auditAnnotations":`...), response.AuditAnnotations); err != nil {
			return nil, err
		}
	}
	if len(response.Warnings) > 0 {
		if dst, err = appendJSON(append(dst, `,"warnings":`...), response.Warnings); err != nil {
			return nil, err
		}
	}
	return append(dst, "}}"...), nil
}

func appendJSON(dst []byte, value any) ([]byte, error) {
	encoded, err := json.Marshal(value)
	return append(dst, encoded...), err
}

// answers has buffers for encoded answers. Unlike those of requests they can be used
// again: nothing refers to them, and an io.Writer must not keep its argument.
var answers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledAnswer keeps a rare large answer from occupying memory forever.
const maxPooledAnswer = 64 << 10

// contentType is shared by all answers.
var contentType = []string{"application/json"}

func write(w http.ResponseWriter, code int, appendTo func([]byte) ([]byte, error)) error {
	buffer := answers.Get().(*[]byte)
	answer, err := appendTo((*buffer)[:0])
	defer func() {
		if cap(answer) <= maxPooledAnswer {
			*buffer = answer
			answers.Put(buffer)
		}
	}()
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	// net/http itself sets the length of a small answer, unless it is flushed, as one of
	// a handler that has not returned, after which the connection is closed.
	w.Header()["Content-Type"] = contentType
	if len(answer) >= 2048 || code != http.StatusOK || w.Header()["Connection"] != nil {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	}
	w.WriteHeader(code)
	if _, err := w.Write(answer); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}
