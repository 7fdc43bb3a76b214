package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// witness is a Validator that notes what it did not see.
type witness struct{ unseen []*extension.Request }

func (*witness) Validate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (w *witness) Unseen(_ context.Context, req *extension.Request, reason string) {
	if !strings.HasPrefix(reason, "the request is not let through unseen: ") {
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
	got, err := deliver(t.Context(), t, server, "", body)
	if err != nil {
		t.Fatal(err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(got.body), &review); err != nil {
		t.Fatal(err)
	}
	return got.code, review.Response
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
		"a name without an end":   []byte(hostilePod("{}", 1)[:200] + `"` + strings.Repeat("a", 300<<10)),
		"another kind of reviews": []byte(strings.Replace(hostilePod("{}", 1000), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			if code, decision := submit(t, server, bytes.NewReader(body)); code != http.StatusRequestEntityTooLarge || decision != nil || w.unseen != nil {
				t.Errorf("%d: %v, %v", code, decision, w.unseen)
			}
		})
	}
}

// behaving is a witness whose Unseen is another one.
type behaving struct {
	witness
	unseen func(context.Context)
}

func (b *behaving) Unseen(ctx context.Context, _ *extension.Request, _ string) { b.unseen(ctx) }

func TestHoweverAWitnessEndsTheRequestIsDenied(t *testing.T) {
	for name, unseen := range map[string]func(context.Context){
		"by a panic":                   func(context.Context) { panic("no words") },
		"by the end of its goroutine":  func(context.Context) { runtime.Goexit() },
		"by the end of its time":       func(ctx context.Context) { <-ctx.Done() },
		"after the end of its request": func(ctx context.Context) { <-ctx.Done(); time.Sleep(100 * time.Millisecond) }, // how late it is
	} {
		for protocol, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				server, _ := listen(t, http2, webhook.HandlerOptions{MaxBodyBytes: 1000}, witnessing(&behaving{unseen: unseen}))
				server.URL += "?timeout=1s"
				code, decision := submit(t, server, strings.NewReader(hostilePod("{}", 1000)))
				if code != http.StatusOK || decision == nil || decision.Allowed {
					t.Errorf("%d: %v", code, decision)
				}
			})
		}
	}
}

func TestEachWitnessKnowsOfARequestThatIsTooLarge(t *testing.T) {
	name, first, second := unique("witnesses"), &behaving{unseen: func(context.Context) { panic("no words") }}, &witness{}
	server, _ := listen(t, false, webhook.HandlerOptions{MaxBodyBytes: 1000},
		extension.Validating[*corev1.Pod](first, extension.Scope{Name: name}), extension.Validating[*corev1.Pod](second, extension.Scope{Name: name}))
	if code, decision := submit(t, server, strings.NewReader(hostilePod("{}", 1000))); code != http.StatusOK || decision.Allowed || len(second.unseen) != 1 {
		t.Errorf("%d: %v; the second one knows of %d", code, decision, len(second.unseen))
	}
}

func TestARequestBeyondAnyLimitIsDeniedBeforeItsWitness(t *testing.T) {
	pod := hostilePod("{}", 1)
	groups := strings.Repeat(`"\u003c\u003c\u003c\u003c\u003c\u003c\u003c\u003c\u003c",`, 10_001)
	for name, body := range map[string]string{
		"nested too deep":              strings.Replace(pod, `"spec":{`, `"spec":{"a":`+strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)+`,`, 1),
		"of a user with many groups":   strings.Replace(pod, `"username":"mallory"`, `"username":"mallory","groups":[`+groups+`"a"]`, 1),
		"of a user with many extras":   strings.Replace(pod, `"username":"mallory"`, `"username":"mallory","extra":{`+extras(10_001)+`}`, 1),
		"of a user larger than a body": strings.Replace(pod, `"username":"mallory"`, `"username":"mallory","groups":["`+strings.Repeat("a", 9<<20)+`"]`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			w := &witness{}
			server, _ := listen(t, false, webhook.HandlerOptions{}, witnessing(w))
			code, decision := submit(t, server, strings.NewReader(body))
			if code != http.StatusOK || decision == nil || decision.Allowed || len(w.unseen) != 1 {
				t.Fatalf("%d: %v; the witness knows of %d", code, decision, len(w.unseen))
			}
			if req := w.unseen[0]; req.Name != "hostile" || req.UserInfo.Username != "mallory" {
				t.Errorf("it knows %v", req)
			}
		})
	}
}

func extras(n int) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, `"k%d":["v"],`, i)
	}
	return strings.TrimSuffix(all.String(), ",")
}
