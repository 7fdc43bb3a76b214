package webhook

import (
	"fmt"
	"mime"
	"net/http"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
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
// bytes. The request may be kept for as long as one likes; see readBody.
func readReview(w http.ResponseWriter, r *http.Request, limit int64) (*admissionv1.AdmissionRequest, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, badRequest(http.StatusMethodNotAllowed, "method %s: an AdmissionReview is sent by POST", r.Method)
	}
	if contentType := r.Header.Get("Content-Type"); !isJSON(contentType) {
		return nil, badRequest(http.StatusUnsupportedMediaType, "content type %q: an AdmissionReview is sent as application/json", contentType)
	}
	body, err := readBody(w, r, limit)
	if err != nil {
		return nil, err
	}
	return parseReview(body)
}

func isJSON(contentType string) bool {
	const want = "application/json"
	if contentType == want {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == want
}

// parseReview returns the request in an AdmissionReview. Its objects are valid
// JSON, and parts of the body.
func parseReview(body []byte) (*admissionv1.AdmissionRequest, error) {
	if len(body) == 0 {
		return nil, badRequest(http.StatusBadRequest, "the body is empty; expected an AdmissionReview")
	}
	// Decoders replace what is not UTF-8, and so two names that differ can
	// become the same. No API server sends such a thing.
	if !utf8.Valid(body) {
		return nil, badRequest(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	var review admissionv1.AdmissionReview
	if err := parseEnvelope(body, &review); err != nil {
		return nil, badRequest(http.StatusBadRequest, "decoding the AdmissionReview: %w", err)
	}
	if want := admissionv1.SchemeGroupVersion.String(); review.APIVersion != want || review.Kind != "AdmissionReview" {
		return nil, badRequest(http.StatusBadRequest, "got apiVersion %q, kind %q; this webhook speaks %s AdmissionReview only: list v1 alone in admissionReviewVersions",
			review.APIVersion, review.Kind, want)
	}
	if review.Request == nil {
		return nil, badRequest(http.StatusBadRequest, "the AdmissionReview has no request")
	}
	if review.Request.UID == "" {
		return nil, badRequest(http.StatusBadRequest, "the AdmissionReview's request has no uid")
	}
	return review.Request, nil
}
