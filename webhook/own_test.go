package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// wholeRequest has all that a request may have.
func wholeRequest(operation admissionv1.Operation) *admissionv1.AdmissionRequest {
	request := podRequest(operation)
	request.Object.Raw, request.OldObject.Raw = []byte(podJSON), []byte(podJSON)
	request.Options.Raw = []byte(`{"kind":"CreateOptions"}`)
	request.DryRun = new(true)
	request.RequestKind, request.RequestResource = new(request.Kind), new(request.Resource)
	request.UserInfo = authenticationv1.UserInfo{
		Username: "ann", Groups: []string{"a", "b", "c", "d", "e"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	return request
}

// scribble overwrites everything in a request.
func scribble(r *extension.Request) {
	r.UID, r.Operation, r.Name, r.Namespace, r.Resource.Resource, r.UserInfo.Username = "x", "x", "x", "x", "x", "x"
	r.Kind.Kind, r.RequestKind.Kind, r.RequestResource.Resource = "x", "x", "x"
	*r.Request.DryRun = !*r.Request.DryRun
	r.UserInfo.Groups[0] = "x"
	_ = append(r.UserInfo.Groups[:1], "x")
	r.UserInfo.Extra["k"][0] = "x"
	r.UserInfo.Extra["x"] = nil
	for _, raw := range [][]byte{r.Object.Raw, r.OldObject.Raw, r.Options.Raw} {
		for i := range raw {
			raw[i] = 'x'
		}
		_ = append(raw, "xxxxxxxx"...)
	}
}

func TestARequestIsTheHandlersOwn(t *testing.T) {
	for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
		var texts []string
		change := func(pod *corev1.Pod, req *extension.Request) error {
			texts = append(texts, fmt.Sprintf("%+v %s %s %s", req.Request, req.Object.Raw, req.OldObject.Raw, *req.RequestKind))
			if pod.Labels == nil {
				pod.Labels = map[string]string{}
			}
			pod.Labels[fmt.Sprint("by", len(texts))] = "yes"
			pod.Spec.Containers[0].Env[0].Value = "2"
			scribble(req)
			return nil
		}
		mutates := extension.Mutating(mutate(func(_ context.Context, pod *corev1.Pod, req *extension.Request) error { return change(pod, req) }), extension.Scope{Name: "test"})
		for n := 1; n <= 3; n++ {
			texts = nil
			core, logs := observer.New(zapcore.DebugLevel)
			request := wholeRequest(operation)
			w := grouped(t, []*extension.Handler{mutates, mutates, mutates}[:n]...)[0]
			response := decided(t, request, send(t, request, w.Handler(webhook.HandlerOptions{Logger: zap.New(core)}), w.Path()))
			for i := range texts {
				if pointers(texts[i]) != pointers(texts[0]) {
					t.Errorf("%s: handler %d of %d got\n%s\nnot\n%s", operation, i+1, n, texts[i], texts[0])
				}
			}
			labels := strings.Join([]string{`"by1":"yes"`, `"by2":"yes"`, `"by3":"yes"`}[:n], ",")
			want := strings.NewReplacer(`"name":"shop"`, `"name":"shop","labels":{`+labels+`}`, `"value":"1"`, `"value":"2"`).Replace(podJSON)
			if got := patched(t, response); fmt.Sprint(got) != fmt.Sprint(tree(t, []byte(want))) {
				t.Errorf("%s: %d handlers made %v by %s", operation, n, got, response.Patch)
			}
			line := logs.FilterMessage("admission").All()[0].ContextMap()
			if line["uid"] != "1234" || line["operation"] != string(operation) || line["user"] != "ann" || line["name"] != "shop" || line["resource"] != "pods" {
				t.Errorf("the line in the log has %v", line)
			}
		}
	}
}

// pointers takes the addresses out of a text.
func pointers(text string) string {
	words := strings.Fields(text)
	for i, word := range words {
		words[i], _, _ = strings.Cut(word, "0x")
	}
	return strings.Join(words, " ")
}

func TestAValidatorsRequestIsItsOwn(t *testing.T) {
	seen := 0
	check := validator(func(pod *corev1.Pod, req *extension.Request) error {
		var old corev1.Pod
		if err := req.Old(&old); err != nil || old.Name != "shop" || pod.Name != "shop" || req.Name != "shop" || !req.DryRun() || req.User().Groups[0] != "a" {
			t.Errorf("got %+v, %v", req.Request, err)
		}
		seen++
		scribble(req)
		return nil
	})
	for _, onStep := range []func(webhook.Step){nil, func(step webhook.Step) {
		if fmt.Sprint(tree(t, step.Object)) != fmt.Sprint(tree(t, []byte(podJSON))) {
			t.Errorf("the step shows %s", step.Object)
		}
	}} {
		request := wholeRequest(admissionv1.Delete)
		request.Object.Raw = nil
		w := grouped(t, check, check)[0]
		decided(t, request, send(t, request, w.Handler(webhook.HandlerOptions{OnStep: onStep}), w.Path()))
	}
	if seen != 4 {
		t.Errorf("the handlers ran %d times", seen)
	}
}

// TestAHandlerThatWasCutOffHasItsRequestToItself is one for the race detector.
func TestAHandlerThatWasCutOffHasItsRequestToItself(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			var stop atomic.Bool
			var ended sync.WaitGroup
			ended.Add(1)
			core, _ := observer.New(zapcore.DebugLevel)
			server, _ := listen(t, http2, webhook.HandlerOptions{Logger: zap.New(core)}, named(unique("scribble"), func(_ context.Context, req *extension.Request) error {
				defer ended.Done()
				for !stop.Load() {
					req.UID, req.Operation, req.UserInfo.Username = "x", "x", "x"
					req.Object.Raw[0] = 'x'
				}
				return nil
			}))
			got, err := call(t.Context(), t, server, "50ms")
			if err != nil || got.code != http.StatusGatewayTimeout {
				t.Errorf("%v, %v", got, err)
			}
			stop.Store(true)
			ended.Wait()
		})
	}
}

// The values that a handler may return, and whose methods panic.
type (
	problem   struct{ text string }
	panics    struct{}
	panicsIs  struct{ error }
	panicsAs  struct{ error }
	marshals  struct{}
	stringers struct{}
)

func (p *problem) Error() string                              { return p.text }
func (panics) Error() string                                  { panic("in Error") }
func (panicsIs) Is(error) bool                                { panic("in Is") }
func (panicsAs) As(any) bool                                  { panic("in As") }
func (marshals) MarshalLogObject(zapcore.ObjectEncoder) error { panic("in MarshalLogObject") }
func (stringers) String() string                              { panic("in String") }

func TestNoValueOfAHandlerIsUsedWhereItsPanicWouldEndTheProcess(t *testing.T) {
	endless := map[string]any{}
	endless["self"] = endless
	var none *problem
	var nilStringer *stringers
	for name, test := range map[string]struct {
		do     func(ctx context.Context) error
		result string
		want   string
	}{
		"a typed nil error":             {func(context.Context) error { return none }, "error", "the error is a nil *webhook_test.problem"},
		"a typed nil error in another":  {func(context.Context) error { return fmt.Errorf("in %w", panics{}) }, "error", "in %!v(PANIC=Error method: in Error)"},
		"an Error that panics":          {func(context.Context) error { return panics{} }, "panic", "panic: in Error"},
		"an Is that panics":             {func(ctx context.Context) error { <-ctx.Done(); return panicsIs{errors.New("x")} }, "", ""},
		"an As that panics":             {func(context.Context) error { return panicsAs{errors.New("x")} }, "panic", "panic: in As"},
		"a log object that panics":      {func(context.Context) error { panic(marshals{}) }, "panic", "panic: a value of type webhook_test.marshals"},
		"a String that panics":          {func(context.Context) error { panic(stringers{}) }, "panic", "in String"},
		"a panic with a nil Stringer":   {func(context.Context) error { panic(nilStringer) }, "panic", "panic: <nil>"},
		"a panic with an error that is": {func(context.Context) error { panic(none) }, "panic", "panic: <nil>"},
		"a panic with an endless map":   {func(context.Context) error { panic(endless) }, "panic", "panic: a value of type map[string]interface"},
		"a panic with a number":         {func(context.Context) error { panic(7) }, "panic", "panic: 7"},
		"an endless text":               {func(context.Context) error { return errors.New(strings.Repeat("é", 1<<20)) }, "error", "(2088960 bytes more)"},
	} {
		for protocol, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder()))
				core, _ := observer.New(zapcore.DebugLevel)
				server, path := listen(t, http2, webhook.HandlerOptions{TracerProvider: provider, Logger: zap.New(core)},
					named(unique("value"), func(ctx context.Context, _ *extension.Request) error { return test.do(ctx) }))
				timeout := "5s"
				if test.result == "" { // it is the deadline's or the handler's, whichever is first
					timeout = "100ms"
				}
				got, err := call(t.Context(), t, server, timeout)
				if err != nil || got.code < 500 || !strings.Contains(messageOf(t, []byte(got.body)), test.want) {
					t.Fatalf("%d %.300s, %v; want %q", got.code, got.body, err, test.want)
				}
				if len(got.body) > 20<<10 {
					t.Errorf("the answer has %d bytes", len(got.body))
				}
				if n := sum(t, "admitkit_admission_requests_total", map[string]string{"webhook": path, "result": test.result}); n != 1 && test.result != "" {
					t.Errorf("%v requests with the result %s", n, test.result)
				}
			})
		}
	}
}

// custom is an object whose JSON cannot be made once a handler has changed it.
type custom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Field             field `json:"field,omitzero"`
}

type field struct{ changed bool }

func (c *custom) DeepCopyObject() runtime.Object {
	copied := *c
	return &copied
}

func (f field) MarshalJSON() ([]byte, error) {
	if f.changed {
		return nil, panicsAs{errors.New("not as JSON")}
	}
	return []byte("{}"), nil
}

func TestAnObjectWhoseJSONCannotBeMadeIsAnErrorOfItsHandler(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			server, path := listen(t, http2, webhook.HandlerOptions{}, extension.Mutating(extension.MutatorFunc[*custom](func(_ context.Context, obj *custom, _ *extension.Request) error {
				obj.Field.changed = true
				return nil
			}), extension.Scope{Name: unique("custom")}))
			got, err := call(t.Context(), t, server, "5s")
			if err != nil || got.code != http.StatusInternalServerError || !strings.Contains(got.body, "not as JSON") {
				t.Errorf("%v, %v", got, err)
			}
			if n := sum(t, "admitkit_admission_requests_total", map[string]string{"webhook": path, "result": "error"}); n != 1 {
				t.Errorf("%v errors", n)
			}
		})
	}
}

func TestAStepHasTheErrorOfItsHandler(t *testing.T) {
	mine := &problem{"mine"}
	var step webhook.Step
	w := grouped(t, named("step", func(context.Context, *extension.Request) error { return fmt.Errorf("it is %w", mine) }))[0]
	send(t, podRequest(admissionv1.Create), w.Handler(webhook.HandlerOptions{OnStep: func(s webhook.Step) { step = s }}), w.Path())
	if !errors.Is(step.Err, mine) || step.Err.Error() != "it is mine" {
		t.Errorf("got %v", step.Err)
	}
}

func TestAPanicOfOnStepIsAnErrorOfTheRequest(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			server, _ := listen(t, http2, webhook.HandlerOptions{OnStep: func(webhook.Step) { panic(panics{}) }},
				named(unique("step"), func(context.Context, *extension.Request) error { return nil }))
			got, err := call(t.Context(), t, server, "5s")
			if err != nil || got.code != http.StatusInternalServerError || !strings.Contains(got.body, "OnStep panicked") {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestAValueThatNoTreeHoldsIsAnErrorOfTheHandlerThatPutItThere(t *testing.T) {
	scope := extension.Scope{Name: "tree"}
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"an int": {5, "spec.novel is of type int"},
		"labels": {map[string]string{"a": "b"}, "spec.novel is of type map[string]string"},
	} {
		for kind, onStep := range map[string]func(webhook.Step){"alone": nil, "in steps": func(webhook.Step) {}} {
			t.Run(name+", "+kind, func(t *testing.T) {
				puts := extension.Mutating(extension.MutatorFunc[*unstructured.Unstructured](func(_ context.Context, obj *unstructured.Unstructured, _ *extension.Request) error {
					obj.Object["spec"].(map[string]any)["novel"] = test.value
					return nil
				}), scope)
				next := extension.Mutating(extension.MutatorFunc[runtime.Object](func(context.Context, runtime.Object, *extension.Request) error { return nil }), scope)
				for _, http2 := range []bool{false, true} {
					server, _ := listen(t, http2, webhook.HandlerOptions{OnStep: onStep}, puts, next)
					got, err := call(t.Context(), t, server, "5s")
					if err != nil || got.code != http.StatusInternalServerError || !strings.Contains(got.body, test.want) || strings.Contains(got.body, "panic") {
						t.Errorf("%v, %v; want %q", got, err, test.want)
					}
				}
			})
		}
	}
}
