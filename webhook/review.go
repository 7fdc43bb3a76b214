package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// requestError is a request that cannot be answered, with its HTTP status.
type requestError struct {
	code int
	err  error
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

func badRequest(code int, format string, args ...any) error {
	return &requestError{code: code, err: fmt.Errorf(format, args...)}
}

// readReview reads the AdmissionReview of an HTTP request, of at most limit
// bytes.
func readReview(w http.ResponseWriter, r *http.Request, limit int64) (*admissionv1.AdmissionRequest, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, badRequest(http.StatusMethodNotAllowed, "method %s: an AdmissionReview is sent by POST", r.Method)
	}
	contentType := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return nil, badRequest(http.StatusUnsupportedMediaType, "content type %q: an AdmissionReview is sent as application/json", contentType)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, badRequest(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", limit)
		}
		return nil, badRequest(http.StatusBadRequest, "reading the body: %w", err)
	}
	if len(body) == 0 {
		return nil, badRequest(http.StatusBadRequest, "the body is empty; expected an AdmissionReview")
	}
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &review); err != nil {
		return nil, badRequest(http.StatusBadRequest, "decoding the AdmissionReview: %w", err)
	}
	if want := admissionv1.SchemeGroupVersion.String(); review.APIVersion != want || review.Kind != "AdmissionReview" {
		return nil, badRequest(http.StatusBadRequest, "got apiVersion %q, kind %q; this webhook speaks %s AdmissionReview only", review.APIVersion, review.Kind, want)
	}
	if review.Request == nil {
		return nil, badRequest(http.StatusBadRequest, "the AdmissionReview has no request")
	}
	if review.Request.UID == "" {
		return nil, badRequest(http.StatusBadRequest, "the AdmissionReview's request has no uid")
	}
	return review.Request, nil
}

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

func writeJSON(w http.ResponseWriter, code int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}
