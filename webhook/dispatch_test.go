package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

// runs makes names of webhooks unique, by which their metrics are found.
var runs atomic.Int64

func unique(name string) string { return fmt.Sprintf("%s-%d", name, runs.Add(1)) }

// named is a validator whose scope, and so whose webhook, has a name.
func named(name string, validate func(ctx context.Context, req *extension.Request) error) *extension.Handler {
	return extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(ctx context.Context, _ *corev1.Pod, req *extension.Request) error {
		return validate(ctx, req)
	}), extension.Scope{Name: name})
}

// listen serves the one webhook of the handlers by HTTP/1.1 or HTTP/2, and returns
// its label in metrics, too.
func listen(t *testing.T, http2 bool, options webhook.HandlerOptions, handlers ...*extension.Handler) (*httptest.Server, string) {
	t.Helper()
	webhooks, err := webhook.Group(handlers, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(webhooks[0].Handler(options))
	server.EnableHTTP2 = http2
	server.StartTLS()
	t.Cleanup(server.Close)
	if webhooks[0].Mutating {
		return server, "mutate/" + webhooks[0].Name
	}
	return server, "validate/" + webhooks[0].Name
}

// answer is what a call got.
type answer struct {
	code   int
	header http.Header
	body   string
}

// call sends the admission of a Pod.
func call(ctx context.Context, t *testing.T, server *httptest.Server, timeout string) (answer, error) {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: podRequest(admissionv1.Create),
	})
	if err != nil {
		t.Fatal(err)
	}
	return deliver(ctx, t, server, "?timeout="+timeout, bytes.NewReader(body))
}

// deliver sends a body as a review.
func deliver(ctx context.Context, t *testing.T, server *httptest.Server, query string, body io.Reader) (answer, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+query, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := server.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(content)}, err
}

// sum adds up the samples of a metric that have all of the labels.
func sum(t *testing.T, metric string, labels map[string]string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.
	for _, family := range families {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			matches := 0
			for _, pair := range m.GetLabel() {
				if value, asked := labels[pair.GetName()]; asked && value == pair.GetValue() {
					matches++
				}
			}
			if matches == len(labels) {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return total
}

// until waits for what another goroutine is about to do.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain until " + what)
		}
	}
}

func TestAHandlerThatOverrunsIsCutOffWhileTheOthersGoOn(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			scope := unique("overrun")
			logs, log := observer.New(zap.WarnLevel)
			var calls atomic.Int32
			steps := make(chan webhook.Step, 10)
			server, path := listen(t, http2, webhook.HandlerOptions{Logger: zap.New(logs), OnStep: func(s webhook.Step) { steps <- s }}, named(scope, func(context.Context, *extension.Request) error {
				if calls.Add(1) == 1 {
					<-release // whatever ctx says
				}
				return nil
			}), named(scope, func(context.Context, *extension.Request) error { return nil }))
			of := func(result string) map[string]string { return map[string]string{"webhook": path, "result": result} }

			got, err := call(t.Context(), t, server, "200ms")
			var status metav1.Status
			if err != nil || json.Unmarshal([]byte(got.body), &status) != nil || got.code != http.StatusGatewayTimeout {
				t.Fatalf("%v, %v", got, err)
			}
			if status.Reason != metav1.StatusReasonTimeout || !strings.Contains(status.Message, "extension.ValidatorFunc: did not finish in time") {
				t.Errorf("got %+v", status)
			}
			if n := sum(t, "admitkit_admission_requests_total", of("timeout")); n != 1 {
				t.Errorf("%v timeouts were counted", n)
			}
			if len(steps) != 1 {
				t.Errorf("%d steps are told of", len(steps))
			} else if step := <-steps; step.Result != "timeout" || step.Err == nil || step.Object != nil {
				t.Errorf("it is told of %+v", step)
			}
			if n := sum(t, "admitkit_webhook_in_flight_requests", map[string]string{"webhook": path}); n != 1 {
				t.Errorf("%v requests are in flight while one handler is stuck", n)
			}
			if got, err := call(t.Context(), t, server, "5s"); err != nil || got.code != http.StatusOK {
				t.Errorf("another request meanwhile: %v, %v", got, err)
			}
			close(release)
			until(t, "the handler has ended", func() bool {
				return sum(t, "admitkit_webhook_in_flight_requests", map[string]string{"webhook": path}) == 0
			})
			if n := log.FilterMessage("extension ended after it was cut off").Len(); n != 1 {
				t.Errorf("%d lines say that the handler ended at last: %v", n, log.All())
			}
			// Two of the second request; nothing of the first one counts any more.
			if n := sum(t, "admitkit_admission_requests_total", of("allowed")); n != 2 {
				t.Errorf("%v handlers were counted as allowing", n)
			}
		})
	}
}

func TestMoreRequestsThanTheLimitAreToldToComeBack(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	server, path := listen(t, false, webhook.HandlerOptions{MaxInFlight: 1}, named(unique("limit"), func(context.Context, *extension.Request) error {
		entered <- struct{}{}
		<-release
		return nil
	}))
	first := make(chan error, 1)
	go func() {
		got, err := call(t.Context(), t, server, "10s")
		if err == nil && got.code != http.StatusOK {
			err = errors.New(got.body)
		}
		first <- err
	}()
	<-entered
	got, err := call(t.Context(), t, server, "10s")
	if err != nil || got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" {
		t.Errorf("%v, %v", got, err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	until(t, "there is room again", func() bool {
		return sum(t, "admitkit_webhook_in_flight_requests", map[string]string{"webhook": path}) == 0
	})
	if got, err := call(t.Context(), t, server, "10s"); err != nil || got.code != http.StatusOK {
		t.Errorf("%v, %v", got, err)
	}
	until(t, "the refusal is counted", func() bool {
		return sum(t, "admitkit_webhook_duration_seconds", map[string]string{"webhook": path, "code": "429"}) == 1
	})
}

func TestAHandlerLearnsThatItsClientIsGone(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			entered, ended := make(chan struct{}), make(chan error, 1)
			server, _ := listen(t, http2, webhook.HandlerOptions{}, named(unique("gone"), func(ctx context.Context, _ *extension.Request) error {
				close(entered)
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			}))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-entered
				cancel()
			}()
			if _, err := call(ctx, t, server, "20s"); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the handler's context ended with %v", err)
			}
		})
	}
}

func TestEveryOutcomeIsCounted(t *testing.T) {
	scope := unique("outcome")
	for result, test := range map[string]struct {
		handler *extension.Handler
		code    int
	}{
		"allowed": {named(scope, func(context.Context, *extension.Request) error { return nil }), 200},
		"denied":  {named(scope, func(context.Context, *extension.Request) error { return extension.Deny("no") }), 200},
		"error":   {named(scope, func(context.Context, *extension.Request) error { return errors.New("broken") }), 500},
		"panic":   {named(scope, func(context.Context, *extension.Request) error { panic("boom") }), 500},
		"timeout": {named(scope, func(ctx context.Context, _ *extension.Request) error { <-ctx.Done(); return ctx.Err() }), 504},
		"mutated": {extension.Mutating(mutate(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			pod.Labels = map[string]string{"a": "b"}
			return nil
		}), extension.Scope{Name: scope}), 200},
	} {
		t.Run(result, func(t *testing.T) {
			server, path := listen(t, false, webhook.HandlerOptions{}, test.handler)
			of := map[string]string{"webhook": path}
			panicsBefore, patchesBefore := sum(t, "admitkit_admission_panics_total", of), sum(t, "admitkit_webhook_patch_bytes", of)
			labels := map[string]string{"webhook": path, "extension": host.Open(test.handler).Name, "operation": "CREATE", "result": result}
			before := sum(t, "admitkit_admission_requests_total", labels)
			got, err := call(t.Context(), t, server, "50ms")
			if err != nil || got.code != test.code {
				t.Fatalf("%v, %v", got, err)
			}
			until(t, "it is counted", func() bool { return sum(t, "admitkit_admission_requests_total", labels) == before+1 })
			if n := sum(t, "admitkit_admission_duration_seconds", labels); n != before+1 {
				t.Errorf("%v durations", n)
			}
			if panics := sum(t, "admitkit_admission_panics_total", of) - panicsBefore; (panics == 1) != (result == "panic") {
				t.Errorf("%v panics", panics)
			}
			if patches := sum(t, "admitkit_webhook_patch_bytes", of) - patchesBefore; (patches == 1) != (result == "mutated") {
				t.Errorf("%v patches", patches)
			}
			if n := sum(t, "admitkit_webhook_body_bytes", of); n == 0 {
				t.Error("no body was measured")
			}
		})
	}
}

func TestEachMutatorOfAChainIsCountedForWhatItDidItself(t *testing.T) {
	scope := extension.Scope{Name: unique("counted")}
	label := func(value string) *extension.Handler {
		return extension.Mutating(mutate(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, "a", value)
			return nil
		}), scope)
	}
	server, path := listen(t, false, webhook.HandlerOptions{}, label("1"), label("1"), label("2"))
	if got, err := call(t.Context(), t, server, "5s"); err != nil || got.code != http.StatusOK {
		t.Fatalf("%v, %v", got, err)
	}
	for result, want := range map[string]float64{"mutated": 2, "allowed": 1} {
		if n := sum(t, "admitkit_admission_requests_total", map[string]string{"webhook": path, "result": result}); n != want {
			t.Errorf("%v handlers %s, want %v", n, result, want)
		}
	}
}

func TestWarningsAreMadeToFitIntoHeaders(t *testing.T) {
	response := admit(t, podRequest(admissionv1.Create), validator(func(_ *corev1.Pod, req *extension.Request) error {
		req.Warnf("two\nlines\x00 and \xff")
		req.Warnf("\t")
		for range 100 {
			req.Warnf("%s", strings.Repeat("é", 300))
		}
		return nil
	}))
	if len(response.Warnings) == 0 || response.Warnings[0] != "two lines  and \ufffd" {
		t.Errorf("got %q", response.Warnings[0])
	}
	total := 0
	for _, warning := range response.Warnings {
		length := len([]rune(warning))
		if total += length; length == 0 || length > 256 || strings.ContainsFunc(warning, unicode.IsControl) {
			t.Errorf("got %q", warning)
		}
	}
	if total > 4096 || len(response.Warnings) != 16 {
		t.Errorf("%d warnings of %d characters", len(response.Warnings), total)
	}
}

func TestAuditAnnotationsAreKeptApartAndNeverRefused(t *testing.T) {
	annotate := func(key string) *extension.Handler {
		return validator(func(_ *corev1.Pod, req *extension.Request) error {
			req.AddAuditAnnotation(key, "1")
			return nil
		})
	}
	respond := ext(func(*corev1.Pod, admission.Request) admission.Response {
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"why": "2"}}}
	})
	response := admit(t, podRequest(admissionv1.Create), mutator(func(*corev1.Pod) {}), respond)
	if response.AuditAnnotations["webhook_test.extensionFunc.why"] != "2" {
		t.Errorf("got %v", response.AuditAnnotations)
	}
	random := rand.New(rand.NewSource(1))
	for range 200 {
		key := make([]rune, random.Intn(80))
		for i := range key {
			key[i] = rune(random.Intn(300))
		}
		response := admit(t, podRequest(admissionv1.Create), annotate(string(key)))
		for name := range response.AuditAnnotations {
			if problems := validation.IsQualifiedName("webhook.admitkit.dev/" + name); len(problems) > 0 {
				t.Fatalf("%q became %q: %v", string(key), name, problems)
			}
		}
		if len(response.AuditAnnotations) != 1 {
			t.Fatalf("%q became %v", string(key), response.AuditAnnotations)
		}
	}
}

func TestTwoExtensionsOfOneNameKeepTheirAnnotations(t *testing.T) {
	annotate := func(value, key string) *extension.Handler {
		return mutatorOf(func(_ *corev1.Pod, req *extension.Request) { req.AddAuditAnnotation(key, value) })
	}
	long := strings.Repeat("k", 80)
	response := admit(t, podRequest(admissionv1.Create), annotate("1", "why"), annotate("2", "why"), annotate("3", "why"), annotate("4", long), annotate("5", long))
	values := map[string]bool{}
	for key, value := range response.AuditAnnotations {
		values[value] = true
		if problems := validation.IsQualifiedName("webhook.admitkit.dev/" + key); len(problems) > 0 {
			t.Errorf("%q: %v", key, problems)
		}
	}
	if len(values) != 5 || response.AuditAnnotations["extension.MutatorFunc.why"] != "1" || response.AuditAnnotations["extension.MutatorFunc-2.why"] != "2" {
		t.Errorf("got %v", response.AuditAnnotations)
	}
}

// mutatorOf returns a Mutator that sees the request.
func mutatorOf(mutate func(*corev1.Pod, *extension.Request)) *extension.Handler {
	return extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		mutate(pod, req)
		return nil
	}), extension.Scope{Name: "test"})
}

func TestSpansShowARequestAndItsExtensions(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	server, path := listen(t, false, webhook.HandlerOptions{TracerProvider: provider},
		named("traced", func(ctx context.Context, _ *extension.Request) error {
			if !trace.SpanContextFromContext(ctx).IsValid() {
				t.Error("the handler cannot make spans of its own")
			}
			return nil
		}),
		named("traced", func(context.Context, *extension.Request) error { return errors.New("broken") }))
	client := server.Client()
	client.Transport = withHeader{client.Transport, "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	if _, err := call(t.Context(), t, server, "5s"); err != nil {
		t.Fatal(err)
	}
	until(t, "the spans have ended", func() bool { return len(spans.Ended()) == 3 })
	first, second, request := spans.Ended()[0], spans.Ended()[1], spans.Ended()[2]
	if request.Name() != "admission "+path || request.Parent().SpanID().String() != "b7ad6b7169203331" || request.Status().Code != codes.Error {
		t.Errorf("got %q of %s, %v", request.Name(), request.Parent().SpanID(), request.Status())
	}
	if attributes := attribute.NewSet(request.Attributes()...); !attributes.HasValue("admission.uid") || !attributes.HasValue("http.response.status_code") {
		t.Errorf("the request has %v", request.Attributes())
	}
	for span, result := range map[sdktrace.ReadOnlySpan]string{first: "allowed", second: "error"} {
		if span.Parent().SpanID() != request.SpanContext().SpanID() || span.Name() != "extension extension.ValidatorFunc" {
			t.Errorf("got %q", span.Name())
		}
		set := attribute.NewSet(span.Attributes()...)
		if value, _ := set.Value("admission.result"); value.AsString() != result {
			t.Errorf("got %v, want %s", span.Attributes(), result)
		}
	}
}

type withHeader struct {
	http.RoundTripper
	key, value string
}

func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(w.key, w.value)
	return w.RoundTripper.RoundTrip(r)
}

func TestAHandlerThatEndsItsGoroutineTakesNothingFromOthers(t *testing.T) {
	for protocol, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(protocol, func(t *testing.T) {
			memory := webhook.NewMemory(4 << 20)
			server, _ := listen(t, http2, webhook.HandlerOptions{Memory: memory, MaxInFlight: 1}, named(unique("exit"), func(context.Context, *extension.Request) error {
				runtime.Goexit()
				return nil
			}))
			other, _ := listen(t, http2, webhook.HandlerOptions{Memory: memory}, named(unique("other"), func(context.Context, *extension.Request) error { return nil }))
			for range 200 {
				if got, err := call(t.Context(), t, server, "10s"); err != nil || got.code != http.StatusInternalServerError || !strings.Contains(got.body, "ended its goroutine") {
					t.Fatalf("%v, %v", got, err)
				}
			}
			if got, err := call(t.Context(), t, other, "1s"); err != nil || got.code != http.StatusOK {
				t.Errorf("another webhook: %v, %v", got, err)
			}
		})
	}
}
