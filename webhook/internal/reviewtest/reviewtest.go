// Package reviewtest is for the tests of webhook and of its codec: requests with an
// AdmissionReview, and what is expected of answers.
package reviewtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With returns an AdmissionReview with more fields in its request.
func With(fields string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"` + fields + `}}`
}

// NewRequest returns a request with a body, as an API server sends it.
func NewRequest(body []byte) *http.Request {
	return WithContentType(httptest.NewRequest(http.MethodPost, "/mutate/test?timeout=10s", bytes.NewReader(body)), "application/json")
}

// WithContentType sets the type of the body, and returns the request.
func WithContentType(request *http.Request, contentType string) *http.Request {
	request.Header.Set("Content-Type", contentType)
	return request
}

// ExpectStatus wants a failure as an answer, with a message that has this one in it.
func ExpectStatus(t *testing.T, recorder *httptest.ResponseRecorder, code int, reason metav1.StatusReason, message string) {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(recorder.Body.Bytes(), &status); err != nil {
		t.Fatalf("the answer is no Status: %v: %s", err, recorder.Body)
	}
	got := fmt.Sprint(recorder.Code, status.APIVersion, status.Kind, status.Status, status.Code, status.Reason)
	if want := fmt.Sprint(code, "v1", "Status", metav1.StatusFailure, code, reason); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !strings.Contains(status.Message, message) {
		t.Errorf("the message is %q, want %q in it", status.Message, message)
	}
}
