package webhook

import (
	"encoding/json"
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
	"github.com/admitkit/admitkit/webhook/internal/reviewtest"
)

func recorded(t testing.TB, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return body
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
		request, checked, err := review.Parse([]byte(reviewtest.With(c.members)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if object := newObject(&request.AdmissionRequest, checked, nil, false); string(object.document.Raw) != c.want {
			t.Errorf("%s: got %s, want %s", name, object.document.Raw, c.want)
		}
	}
}

func TestObjectIsNotDecodedWhenNoHandlerNeedsIt(t *testing.T) {
	recorder := post([]byte(reviewtest.With(`,"operation":"CREATE","kind":{"version":"v1","kind":"Pod"},"object":"not a Pod"`)))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
		t.Fatal(err)
	}
	if recorder.Code != http.StatusOK || review.Response == nil || !review.Response.Allowed {
		t.Errorf("got %d: %s", recorder.Code, recorder.Body)
	}
}

func TestRequestThatIsNoReviewGetsItsHTTPStatus(t *testing.T) {
	valid := reviewtest.With(``)
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
			reviewtest.WithContentType(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(valid)), "application/yaml"),
			http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, `content type "application/yaml"`,
		},
		"a body that is announced as too large": {
			reviewtest.WithContentType(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat(" ", 2000))), "application/json"),
			http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, "larger than 1000 bytes",
		},
		"a body that turns out too large": {
			reviewtest.WithContentType(httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(strings.Repeat(" ", 2000)))), "application/json"),
			http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, "larger than 1000 bytes",
		},
		"a body that ends too early": {
			reviewtest.WithContentType(httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(valid), broken{})), "application/json"),
			http.StatusBadRequest, metav1.StatusReasonBadRequest, "reading the body: unexpected EOF",
		},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			(&Webhook{Name: "test"}).Handler(HandlerOptions{MaxBodyBytes: 1000}).ServeHTTP(recorder, test.request)
			reviewtest.ExpectStatus(t, recorder, test.code, test.reason, test.message)
		})
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// post sends a body to a webhook without handlers.
func post(body []byte) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	(&Webhook{Name: "test"}).Handler(HandlerOptions{}).ServeHTTP(recorder, reviewtest.NewRequest(body))
	return recorder
}
