package review

import (
	"errors"
	"mime"
	"net/http"
	"unicode/utf8"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
	"github.com/admitkit/admitkit/webhook/internal/limits"
)

// Read reads the body, of at most limit bytes, of an HTTP request that may be a review of
// the kind that what names.
func Read(w http.ResponseWriter, r *http.Request, what string, limit int64, share *limits.Share) ([]byte, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, failure.New(http.StatusMethodNotAllowed, "method %s: %s is sent by POST", r.Method, what)
	}
	if contentType := r.Header.Get("Content-Type"); !isJSON(contentType) {
		return nil, failure.New(http.StatusUnsupportedMediaType, "content type %q: %s is sent as application/json", contentType, what)
	}
	return limits.ReadBody(w, r, limit, share)
}

func isJSON(contentType string) bool {
	const want = "application/json"
	if contentType == want {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == want
}

// apiVersion is the supported version of AdmissionReview.
const apiVersion = "admission.k8s.io/v1"

// Parse returns the request in an AdmissionReview. Its objects are valid
// JSON, and parts of the body. Callers may keep it; see limits.ReadBody. It also returns the
// object that the request is about.
func Parse(body []byte) (*extension.Request, wire.Text, error) {
	if len(body) == 0 {
		return nil, wire.Text{}, failure.New(http.StatusBadRequest, "the body is empty; expected an AdmissionReview")
	}
	// Decoders replace invalid UTF-8, which can make two different names equal. API
	// servers send only valid UTF-8.
	if !utf8.Valid(body) {
		return nil, wire.Text{}, failure.New(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	review, request, object, err := parseEnvelope(body)
	if err != nil {
		code := http.StatusBadRequest
		if errors.Is(err, errTooMany) || errors.Is(err, wire.ErrTooDeep) {
			code = http.StatusRequestEntityTooLarge
		}
		return nil, wire.Text{}, failure.New(code, "decoding the AdmissionReview: %w", err)
	}
	if review.APIVersion != apiVersion || review.Kind != "AdmissionReview" {
		return nil, wire.Text{}, failure.New(http.StatusBadRequest, "got apiVersion %q, kind %q; this webhook speaks %s AdmissionReview only: list v1 alone in admissionReviewVersions",
			review.APIVersion, review.Kind, apiVersion)
	}
	if request == nil {
		return nil, wire.Text{}, failure.New(http.StatusBadRequest, "the AdmissionReview has no request")
	}
	if request.UID == "" {
		return nil, wire.Text{}, failure.New(http.StatusBadRequest, "the AdmissionReview's request has no uid")
	}
	return request, object, nil
}
