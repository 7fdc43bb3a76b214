package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/webhook/internal/review"
)

func recorded(t testing.TB, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// reviewOf returns an AdmissionReview with more fields in its request.
func reviewOf(fields string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"` + fields + `}}`
}

func TestTheObjectOfARequestIsTheOneThatWasCheckedWithIt(t *testing.T) {
	for name, c := range map[string]struct{ members, want string }{
		"an object":                         {`,"object":{"a":1},"oldObject":{"b":2}`, `{"a":1}`},
		"an old object in front":            {`,"oldObject":{"b":2},"object":{"a":1}`, `{"a":1}`},
		"an object that is deleted":         {`,"object":null,"oldObject":{"b":2},"operation":"DELETE"`, `{"b":2}`},
		"one that is deleted, and another":  {`,"object":{"a":1},"oldObject":{"b":2},"operation":"DELETE"`, `{"b":2}`},
		"no object":                         {``, ``},
		"an old object, but no object here": {`,"oldObject":{"b":2}`, ``},
	} {
		request, checked, err := review.Parse([]byte(reviewOf(c.members)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if object := newObject(&request.AdmissionRequest, checked, nil, false); string(object.document.Raw) != c.want {
			t.Errorf("%s: got %s, want %s", name, object.document.Raw, c.want)
		}
	}
}

func TestObjectIsNotDecodedWhenNoHandlerNeedsIt(t *testing.T) {
	recorder := post([]byte(reviewOf(`,"operation":"CREATE","kind":{"version":"v1","kind":"Pod"},"object":"not a Pod"`)))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
		t.Fatal(err)
	}
	if recorder.Code != http.StatusOK || review.Response == nil || !review.Response.Allowed {
		t.Errorf("got %d: %s", recorder.Code, recorder.Body)
	}
}

func TestRequestThatIsNoReviewGetsItsHTTPStatus(t *testing.T) {
	valid := reviewOf(``)
	for name, test := range map[string]struct {
		request *http.Request
		code    int
		reason  metav1.StatusReason
		message string
	}{
		"another method": {
			httptest.NewRequest(http.MethodGet, "/", nil),
			http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "method GET",
		},
		"no content type": {
			httptest.NewRequest(http.MethodPost, "/", strings.NewReader(valid)),
			http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, `content type ""`,
		},
		"another content type": {
			withContentType(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(valid)), "application/yaml"),
			http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, `content type "application/yaml"`,
		},
		"a body that is announced as too large": {
			withContentType(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat(" ", 2000))), "application/json"),
			http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, "larger than 1000 bytes",
		},
		"a body that turns out too large": {
			withContentType(httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(strings.Repeat(" ", 2000)))), "application/json"),
			http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, "larger than 1000 bytes",
		},
		"a body that ends too early": {
			withContentType(httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(valid), broken{})), "application/json"),
			http.StatusBadRequest, metav1.StatusReasonBadRequest, "reading the body: unexpected EOF",
		},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			(&Webhook{Name: "test"}).Handler(HandlerOptions{MaxBodyBytes: 1000}).ServeHTTP(recorder, test.request)
			expectStatus(t, recorder, test.code, test.reason, test.message)
		})
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func newRequest(body []byte) *http.Request {
	return withContentType(httptest.NewRequest(http.MethodPost, "/mutate/test?timeout=10s", bytes.NewReader(body)), "application/json")
}

func withContentType(request *http.Request, contentType string) *http.Request {
	request.Header.Set("Content-Type", contentType)
	return request
}

// post sends a body to a webhook without handlers.
func post(body []byte) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	(&Webhook{Name: "test"}).Handler(HandlerOptions{}).ServeHTTP(recorder, newRequest(body))
	return recorder
}

func expectStatus(t *testing.T, recorder *httptest.ResponseRecorder, code int, reason metav1.StatusReason, message string) {
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
