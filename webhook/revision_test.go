package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// first and second are handlers with types of their own, which append to a label.
type (
	first  struct{}
	second struct{}
)

func (first) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	pod.Labels = map[string]string{"by": pod.Labels["by"] + "1"}
	return nil
}

func (second) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	pod.Labels = map[string]string{"by": pod.Labels["by"] + "2"}
	return nil
}

// byFunction does so as a function, which has no type of its own.
func byFunction(name string, scope extension.Scope) *extension.Handler {
	return extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		pod.Labels = map[string]string{"by": pod.Labels["by"] + name}
		return nil
	}), scope)
}

// guard refuses everything.
type guard struct{}

func (guard) Validate(context.Context, *corev1.Pod, *extension.Request) error {
	return extension.Deny("no")
}

func grouped(t *testing.T, handlers ...*extension.Handler) []*webhook.Webhook {
	t.Helper()
	webhooks, err := webhook.Group(handlers, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	return webhooks
}

func TestAReplicaOfAnotherRevisionAnswersWithTheHandlersItHas(t *testing.T) {
	slow, named := extension.Scope{Timeout: 7 * time.Second}, extension.Scope{Name: "named"}
	one := func(s extension.Scope) *extension.Handler { return extension.Mutating(first{}, s) }
	two := func(s extension.Scope) *extension.Handler { return extension.Mutating(second{}, s) }
	refuse := func(s extension.Scope) *extension.Handler { return extension.Validating(guard{}, s) }
	function := func(name string) *extension.Handler { return byFunction(name, named) }
	other := extension.Mutating(extension.MutatorFunc[*corev1.Service](func(context.Context, *corev1.Service, *extension.Request) error { return nil }), slow)
	for name, test := range map[string]struct {
		here, registered []*extension.Handler // by this replica, and by another
		by               string
		denied           bool
		missing          string
	}{
		"the scope changed":                   {here: []*extension.Handler{one(extension.Scope{})}, registered: []*extension.Handler{one(slow)}, by: "1"},
		"the scope got a name":                {here: []*extension.Handler{one(extension.Scope{})}, registered: []*extension.Handler{one(named)}, by: "1"},
		"a handler is new":                    {here: []*extension.Handler{one(named)}, registered: []*extension.Handler{two(named), one(named)}, by: "1", missing: "webhook-test-second-v1-pod"},
		"a handler is gone":                   {here: []*extension.Handler{one(named), two(named)}, registered: []*extension.Handler{two(named)}, by: "2"},
		"the order changed":                   {here: []*extension.Handler{one(named), two(named)}, registered: []*extension.Handler{two(named), one(named)}, by: "21"},
		"handlers of two scopes share one":    {here: []*extension.Handler{one(named), two(slow)}, registered: []*extension.Handler{one(named), two(named)}, by: "12"},
		"everything is new":                   {registered: []*extension.Handler{one(named)}, missing: "webhook-test-first-v1-pod"},
		"a guard has another scope":           {here: []*extension.Handler{refuse(named)}, registered: []*extension.Handler{refuse(slow)}, denied: true},
		"a guard is new":                      {here: []*extension.Handler{one(named)}, registered: []*extension.Handler{refuse(slow)}, missing: "webhook-test-guard-v1-pod"},
		"functions are told apart by a count": {here: []*extension.Handler{function("1"), function("2")}, registered: []*extension.Handler{function("3"), function("4"), function("5")}, by: "12", missing: "extension-mutatorfunc-v1-pod.3"},
		"a function is gone before another":   {here: []*extension.Handler{byFunction("1", extension.Scope{}), function("2")}, registered: []*extension.Handler{function("2")}, by: "2"},
		"a function takes something else":     {here: []*extension.Handler{function("1")}, registered: []*extension.Handler{other}, missing: "extension-mutatorfunc-v1-service"},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zapcore.WarnLevel)
			others := webhook.OtherRevisions(grouped(t, test.here...), webhook.HandlerOptions{Logger: zap.New(core)})
			registered := grouped(t, test.registered...)
			if len(registered) != 1 {
				t.Fatalf("%d webhooks are registered", len(registered))
			}
			for range 2 {
				request := podRequest(admissionv1.Create)
				response := decided(t, request, send(t, request, others, registered[0].Path()))
				if response.Allowed == test.denied {
					t.Errorf("it is allowed: %t", response.Allowed)
				}
				var by any
				if labels, ok := patched(t, response)["metadata"].(map[string]any)["labels"].(map[string]any); ok {
					by = labels["by"]
				}
				if test.by == "" && by != nil || test.by != "" && by != test.by {
					t.Errorf("it is mutated by %v, want %q", by, test.by)
				}
			}
			if logs.Len() != 1 {
				t.Fatalf("two requests are logged %d times", logs.Len())
			}
			if missing := fmt.Sprint(logs.All()[0].ContextMap()["missing"]); missing != "["+test.missing+"]" {
				t.Errorf("missing are %s, want %q", missing, test.missing)
			}
		})
	}
}

func TestAPathThatNamesNoHandlersIsNotFound(t *testing.T) {
	others := webhook.OtherRevisions(grouped(t, extension.Mutating(first{}, extension.Scope{Name: "pods"})), webhook.HandlerOptions{})
	for _, path := range []string{"/mutate/pods", "/mutate/", "/validate/x", "/validate"} {
		if w := send(t, podRequest(admissionv1.Create), others, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: HTTP %d", path, w.Code)
		}
	}
	for i := range 1000 { // more than it remembers
		request := podRequest(admissionv1.Create)
		response := decided(t, request, send(t, request, others, fmt.Sprintf("/mutate/pods-%d/webhook-test-first-v1-pod", i)))
		if len(response.Patch) == 0 {
			t.Fatalf("path %d: the handler did not run", i)
		}
	}
}

func TestThePathOfAWebhookIsOneThatTheAPIServerTakes(t *testing.T) {
	type ÄÖÜ struct{ first }
	type ÜnicodeAndANameThatIsMuchLongerThanWhatASegmentOfAPathShouldBe struct{ first }
	paths := map[string]bool{}
	for _, w := range grouped(t, byFunction("1", extension.Scope{}), byFunction("2", extension.Scope{}), extension.Mutating(ÄÖÜ{}, extension.Scope{Name: "a"}), extension.Validating(guard{}, extension.Scope{}),
		extension.Mutating(&ÜnicodeAndANameThatIsMuchLongerThanWhatASegmentOfAPathShouldBe{}, extension.Scope{Name: "b"})) {
		if paths[w.Path()] {
			t.Errorf("two webhooks have the path %s", w.Path())
		}
		paths[w.Path()] = true
		// What the validation of a clientConfig.service.path asks for.
		for segment := range strings.SplitSeq(strings.TrimPrefix(w.Path(), "/"), "/") {
			if problems := validation.IsDNS1123Subdomain(segment); len(problems) > 0 {
				t.Errorf("%s: %q: %v", w.Path(), segment, problems)
			}
		}
	}
}
