package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
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

// renamedGuard is guard in another revision.
type renamedGuard struct{ guard }

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
	renamed := extension.Validating(renamedGuard{}, named)
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
		"a handler has a new name":            {here: []*extension.Handler{one(named)}, registered: []*extension.Handler{two(named)}, by: "1", missing: "webhook-test-second-v1-pod"},
		"one of two has a new name":           {here: []*extension.Handler{one(named), function("f")}, registered: []*extension.Handler{two(named), function("f")}, by: "1f", missing: "webhook-test-second-v1-pod"},
		"a guard has a new name":              {here: []*extension.Handler{refuse(named)}, registered: []*extension.Handler{renamed}, denied: true, missing: "webhook-test-renamedguard-v1-pod"},
		"two parts are equal":                 {here: []*extension.Handler{one(named), one(named)}, registered: []*extension.Handler{one(slow), one(slow)}, by: "11"},
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

// Of two functions of one name and scope one may not observe. A replica that does not know of
// the modes runs each as it is registered.
func TestFunctionsOfOneNameKeepTheirModesInAnotherRevision(t *testing.T) {
	deny := func(reason string, modes ...extension.Mode) *extension.Handler {
		return extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(context.Context, *corev1.Pod, *extension.Request) error { return extension.Deny(reason) }), extension.Scope{Modes: modes})
	}
	handlers := []*extension.Handler{deny("of the first"), deny("of the guard", extension.Enforce)}
	registered, err := webhook.Group(handlers, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"*"}, Mode: extension.Observe}}})
	if err != nil {
		t.Fatal(err)
	}
	others := webhook.OtherRevisions(grouped(t, handlers...), webhook.HandlerOptions{})
	for _, w := range registered {
		request := podRequest(admissionv1.Create)
		response := decided(t, request, send(t, request, others, w.Path()))
		switch {
		case w.Observes() && (!response.Allowed || response.AuditAnnotations["extension.ValidatorFunc.would-deny"] != "of the first"):
			t.Errorf("%s: %+v", w.Path(), response)
		case !w.Observes() && (response.Allowed || response.Result.Message != "of the guard"):
			t.Errorf("%s: %+v", w.Path(), response)
		}
	}
}

// The new revision has another guard of the same scope, which is in force at once.
func TestAnExtensionThatObservesStandsInForNoneInForce(t *testing.T) {
	named := extension.Scope{Name: "named"}
	observed, added := extension.Validating(guard{}, named), extension.Validating(renamedGuard{}, named)
	grouped := func(handlers ...*extension.Handler) []*webhook.Webhook {
		webhooks, err := webhook.Group(handlers, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"webhook_test.guard"}, Mode: extension.Observe}}})
		if err != nil {
			t.Fatal(err)
		}
		return webhooks
	}
	others := webhook.OtherRevisions(grouped(observed), webhook.HandlerOptions{})
	for _, w := range grouped(observed, added) {
		request := podRequest(admissionv1.Create)
		response := decided(t, request, send(t, request, others, w.Path()))
		if found := response.AuditAnnotations["webhook_test.guard.would-deny"]; !response.Allowed || (found == "no") != w.Observes() {
			t.Errorf("%s: allowed is %t, and it finds %q", w.Path(), response.Allowed, found)
		}
	}
}

func TestAPathThatNamesNoHandlersIsNotFound(t *testing.T) {
	others := webhook.OtherRevisions(grouped(t, extension.Mutating(first{}, extension.Scope{Name: "pods"})), webhook.HandlerOptions{})
	for _, path := range []string{"/mutate/pods", "/mutate/", "/validate/x", "/validate", "/mutate/pods/", "/mutate//x", "/mutate/pods/x//y", "/mutate/pods/" + strings.Repeat("x", 81), "/mutate/pods" + strings.Repeat("/x", 1001)} {
		if w := send(t, podRequest(admissionv1.Create), others, path); w.Code != http.StatusNotFound || messageOf(t, w.Body.Bytes()) == "" {
			t.Errorf("%s: HTTP %d %s", path, w.Code, w.Body)
		}
	}
}

func TestAPathRunsEachHandlerOnceHoweverOftenItNamesIt(t *testing.T) {
	ran := 0
	counts := extension.Mutating(mutate(func(context.Context, *corev1.Pod, *extension.Request) error { ran++; return nil }), extension.Scope{Name: "pods"})
	for name, test := range map[string]struct {
		path func(i int) string
		want int
	}{
		"by its name":        {func(int) string { return "/extension-mutatorfunc-v1-pod" }, 2},
		"by its ordinals":    {func(i int) string { return fmt.Sprintf("/extension-mutatorfunc-v1-pod.%d", i) }, 2},
		"by names it hasn't": {func(i int) string { return fmt.Sprintf("/other.%d", i) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			others := webhook.OtherRevisions(grouped(t, counts, counts), webhook.HandlerOptions{})
			path := "/mutate/pods"
			for i := range 1000 {
				path += test.path(i)
			}
			ran = 0
			request := podRequest(admissionv1.Create)
			if decided(t, request, send(t, request, others, path)); ran != test.want {
				t.Errorf("the two handlers ran %d times", ran)
			}
		})
	}
}

func TestPathsThatAreMadeUpCostNeitherMemoryNorLog(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	others := webhook.OtherRevisions(grouped(t, extension.Mutating(first{}, extension.Scope{Name: "pods"})), webhook.HandlerOptions{Logger: zap.New(core)})
	kept := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	admitBy := func(path string) {
		request := podRequest(admissionv1.Create)
		if response := decided(t, request, send(t, request, others, path)); len(response.Patch) == 0 {
			t.Fatalf("%.100s: the handler did not run", path)
		}
	}
	admitBy("/mutate/pods/webhook-test-first-v1-pod")
	before := kept()
	const paths, long = 200, 900
	for i := range paths {
		admitBy(fmt.Sprintf("/mutate/pods-%d/webhook-test-first-v1-pod", i) + strings.Repeat("/"+strings.Repeat("x", 70), long))
	}
	if after := kept(); after > before+paths*long*70/10 {
		t.Errorf("of %d paths, %d KiB are kept", paths, (after-before)/1024)
	}
	warnings := logs.FilterLevelExact(zapcore.WarnLevel).All()
	if len(warnings) != 1 {
		t.Errorf("they are logged %d times", len(warnings))
	}
}

func TestTheNextWarningSaysHowManyRequestsHadNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		others := webhook.OtherRevisions(nil, webhook.HandlerOptions{Logger: zap.New(core)})
		path := "/validate/pods" + strings.Repeat("/x", 900)
		for range 3 {
			send(t, podRequest(admissionv1.Create), others, path)
		}
		time.Sleep(time.Minute)
		send(t, podRequest(admissionv1.Create), others, path)
		lines := logs.All()
		if len(lines) != 2 || lines[1].ContextMap()["unloggedRequests"] != int64(2) {
			t.Fatalf("got %v", lines)
		}
		if size := len(fmt.Sprint(lines[0].ContextMap())); size > 2000 {
			t.Errorf("a line has %d bytes", size)
		}
	})
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
