package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writeResponse answers an admission that was decided.
func writeResponse(w http.ResponseWriter, response *admissionv1.AdmissionResponse) error {
	return writeJSON(w, http.StatusOK, &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: response,
	})
}

// writeFailure answers a request for which there is no decision. See the
// package comment for why it is a Status.
func writeFailure(w http.ResponseWriter, code int, err error) error {
	return writeJSON(w, code, &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Message:  err.Error(),
		Reason:   reasons[code],
		Code:     int32(code), //nolint:gosec // an HTTP status
	})
}

var reasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
	http.StatusInternalServerError:   metav1.StatusReasonInternalError,
}

// answers are the buffers in which answers are encoded. They can be used again,
// unlike those of the requests: what is encoded is copied into them, and an
// io.Writer must not keep what it is given.
var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledAnswer keeps a rare large answer from occupying memory for ever.
const maxPooledAnswer = 64 << 10

func writeJSON(w http.ResponseWriter, code int, value any) error {
	answer := answers.Get().(*bytes.Buffer)
	defer func() {
		if answer.Cap() <= maxPooledAnswer {
			answer.Reset()
			answers.Put(answer)
		}
	}()
	if err := json.NewEncoder(answer).Encode(value); err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(answer.Len()))
	w.WriteHeader(code)
	if _, err := w.Write(answer.Bytes()); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}
