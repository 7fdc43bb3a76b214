package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// witness is a Validator that notes what it did not see.
type witness struct{ unseen []*extension.Request }

func (*witness) Validate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (w *witness) Unseen(_ context.Context, req *extension.Request, reason string) {
	if !strings.Contains(reason, "too large") && !strings.Contains(reason, "larger than") {
		panic(reason)
	}
	w.unseen = append(w.unseen, req)
}

func witnessing(w extension.Validator[*corev1.Pod]) *extension.Handler {
	return extension.Validating(w, extension.Scope{Name: unique("witness")})
}

// submit sends a body by HTTP, and returns the decision, nil if there is none.
func submit(t *testing.T, server *httptest.Server, body io.Reader) (code int, decision *admissionv1.AdmissionResponse) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&review); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, review.Response
}

func TestARequestThatIsTooLargeIsDeniedBeforeItsWitness(t *testing.T) {
	large := hostilePod(`{"name":"`+strings.Repeat("a", 100)+`"}`, 20_000)
	small := webhook.HandlerOptions{MaxBodyBytes: 1 << 20}
	for name, test := range map[string]struct {
		options webhook.HandlerOptions
		http2   bool
		body    io.Reader
	}{
		"to be read":                        {small, false, strings.NewReader(large)},
		"to be read, by HTTP/2":             {small, true, strings.NewReader(large)},
		"to be read, of unannounced length": {small, false, io.MultiReader(strings.NewReader(large))},
		"to be kept while it is read":       {webhook.HandlerOptions{Memory: webhook.NewMemory(4 << 20)}, false, strings.NewReader(large)},
		"to be decoded":                     {webhook.HandlerOptions{Memory: webhook.NewMemory(16 << 20)}, false, strings.NewReader(large)},
	} {
		t.Run(name, func(t *testing.T) {
			w := &witness{}
			server, _ := listen(t, test.http2, test.options, witnessing(w))
			code, decision := submit(t, server, test.body)
			if code != http.StatusOK || decision == nil || decision.Allowed || decision.Result.Code != http.StatusRequestEntityTooLarge {
				t.Fatalf("%d: %v", code, decision)
			}
			if len(w.unseen) != 1 {
				t.Fatalf("the witness knows of %d requests", len(w.unseen))
			}
			if req := w.unseen[0]; req.Name != "hostile" || req.UserInfo.Username != "mallory" || req.Operation != "CREATE" || req.UID != decision.UID || req.Object.Raw != nil {
				t.Errorf("it knows %v", req)
			}
		})
	}
}

func TestARequestThatIsTooLargeFailsWithoutAWitness(t *testing.T) {
	server, _ := listen(t, false, webhook.HandlerOptions{MaxBodyBytes: 1000}, named(unique("large"), func(context.Context, *extension.Request) error { return nil }))
	if code, decision := submit(t, server, strings.NewReader(hostilePod("{}", 1000))); code != http.StatusRequestEntityTooLarge || decision != nil {
		t.Errorf("%d: %v", code, decision)
	}
}

func TestABodyThatIsTooLargeAndNoReviewFails(t *testing.T) {
	w := &witness{}
	server, _ := listen(t, false, webhook.HandlerOptions{MaxBodyBytes: 1000}, witnessing(w))
	for name, body := range map[string][]byte{
		"no JSON":                 bytes.Repeat([]byte(" "), 2000),
		"a user without an end":   []byte(hostilePod("{}", 1)[:300] + strings.Repeat("a", 300<<10)),
		"another kind of reviews": []byte(strings.Replace(hostilePod("{}", 1000), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			if code, decision := submit(t, server, bytes.NewReader(body)); code != http.StatusRequestEntityTooLarge || decision != nil || w.unseen != nil {
				t.Errorf("%d: %v, %v", code, decision, w.unseen)
			}
		})
	}
}

// speechless is a witness that panics.
type speechless struct{ witness }

func (*speechless) Unseen(context.Context, *extension.Request, string) { panic("no words") }

func TestAWitnessThatPanicsIsAnErrorOfItsRequest(t *testing.T) {
	server, _ := listen(t, false, webhook.HandlerOptions{MaxBodyBytes: 1000}, witnessing(&speechless{}))
	if code, decision := submit(t, server, strings.NewReader(hostilePod("{}", 1000))); code != http.StatusInternalServerError || decision != nil {
		t.Errorf("%d: %v", code, decision)
	}
}
