package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	jsonpatchapply "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/review"
	"github.com/admitkit/admitkit/webhook/internal/reviewtest"
)

// The benchmarks that `make bench` compares: the same recorded AdmissionReview,
// answered by admitkit, by what an author of controller-runtime writes for the
// same work, and by the floor, what no implementation can do without: the
// recorder, a look at all of the body, and one decode of the object.

// contestants answer a request, each in as many calls as it needs.
type contestants struct {
	file                        string
	admitkit, controllerRuntime []http.Handler
}

// ours is the handler as our server serves it.
func ours(mutating bool, handlers ...*extension.Handler) []http.Handler {
	server := NewServer(ServerOptions{})
	server.Register(benchPath, (&Webhook{Name: "bench", Mutating: mutating, Handlers: handlers}).Handler(HandlerOptions{}))
	return []http.Handler{server.WebhookMux()}
}

// theirs is a handler as controller-runtime's server serves it, with its metrics.
func theirs(handler http.Handler) http.Handler {
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{})
	server.Register(benchPath, handler)
	return server.WebhookMux()
}

const benchPath = "/mutate/test"

func ourMutator(mutate func(*corev1.Pod)) *extension.Handler {
	return extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		mutate(pod)
		return nil
	}), extension.Scope{})
}

type theirDefaulter func(*corev1.Pod)

func (d theirDefaulter) Default(_ context.Context, pod *corev1.Pod) error {
	d(pod)
	return nil
}

func theirMutator(mutate func(*corev1.Pod)) http.Handler {
	return theirs(admission.WithDefaulter(clientgoscheme.Scheme, theirDefaulter(mutate)))
}

// theirHandler is for what controller-runtime's Defaulter and Validator cannot
// do: decode into another type than the object's, or see a CONNECT.
func theirHandler(newObject func() runtime.Object) http.Handler {
	decoder := admission.NewDecoder(clientgoscheme.Scheme)
	return theirs(&admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, req admission.Request) admission.Response {
		if err := decoder.DecodeRaw(req.Object, newObject()); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		return admission.Allowed("")
	})})
}

func addVariable(pod *corev1.Pod) {
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "ADDED", Value: "by a webhook"})
}

func nothing(*corev1.Pod) {}

func cases() map[string]contestants {
	five := make([]*extension.Handler, 5)
	theirFive := make([]http.Handler, 5)
	for i := range five {
		annotate := func(pod *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, fmt.Sprintf("bench/%d", i), "mutated")
		}
		five[i], theirFive[i] = ourMutator(annotate), theirMutator(annotate)
	}
	connect := extension.Validating(extension.ValidatorFunc[*corev1.PodExecOptions](func(context.Context, *corev1.PodExecOptions, *extension.Request) error { return nil }), extension.Scope{})
	metadata := extension.Validating(extension.ValidatorFunc[*metav1.PartialObjectMetadata](func(context.Context, *metav1.PartialObjectMetadata, *extension.Request) error { return nil }), extension.Scope{})
	return map[string]contestants{
		"mutate":   {"create-pod-5k.json", ours(true, ourMutator(addVariable)), []http.Handler{theirMutator(addVariable)}},
		"noop":     {"create-pod-5k.json", ours(true, ourMutator(nothing)), []http.Handler{theirMutator(nothing)}},
		"chain5":   {"create-pod-5k.json", ours(true, five...), theirFive},
		"large64k": {"create-pod-64k.json", ours(true, ourMutator(addVariable)), []http.Handler{theirMutator(addVariable)}},
		"update":   {"update-pod.json", ours(true, ourMutator(addVariable)), []http.Handler{theirMutator(addVariable)}},
		"metadata": {"create-pod-5k.json", ours(false, metadata), []http.Handler{theirHandler(func() runtime.Object { return &metav1.PartialObjectMetadata{} })}},
		"connect":  {"connect-exec.json", ours(false, connect), []http.Handler{theirHandler(func() runtime.Object { return &corev1.PodExecOptions{} })}},
	}
}

// BenchmarkHandler answers requests without a network.
func BenchmarkHandler(b *testing.B) {
	ctrllog.SetLogger(logr.Discard()) // else it keeps every line
	for _, name := range caseNames() {
		c := cases()[name]
		body := recorded(b, c.file)
		for _, impl := range []struct {
			name     string
			handlers []http.Handler
		}{{"admitkit", c.admitkit}, {"controller-runtime", c.controllerRuntime}, {"floor", []http.Handler{floor(b, body)}}} {
			b.Run("case="+name+"/impl="+impl.name, func(b *testing.B) {
				client := newClient(body)
				b.ReportAllocs()
				before := cpuTime(b)
				for b.Loop() {
					for _, handler := range impl.handlers {
						if recorder := client.send(handler); recorder.Code != http.StatusOK {
							b.Fatalf("%d: %s", recorder.Code, recorder.Body)
						}
					}
				}
				b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime returns how much CPU time this process has used, in all threads.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func caseNames() []string {
	names := make([]string, 0, len(cases()))
	for name := range cases() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// floor reads a body and decodes its object.
func floor(t testing.TB, body []byte) http.Handler {
	request, _, err := review.Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	decode := func() error { return wire.Decode(request.Object.Raw, &corev1.Pod{}) }
	if request.Operation == admissionv1.Connect {
		decode = func() error { return wire.Decode(request.Object.Raw, &corev1.PodExecOptions{}) }
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !json.Valid(body) || decode() != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
}

// client sends one body again and again. What it costs is the same for all.
type client struct {
	request *http.Request
	reader  *bytes.Reader
	body    []byte
}

func newClient(body []byte) *client {
	return &client{request: reviewtest.NewRequest(body), reader: bytes.NewReader(body), body: body}
}

func (c *client) send(handler http.Handler) *httptest.ResponseRecorder {
	c.reader.Reset(c.body)
	c.request.Body = io.NopCloser(c.reader)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, c.request)
	return recorder
}

func TestTheContestantsOfTheBenchmarkDoTheSameWork(t *testing.T) {
	for name, c := range cases() {
		t.Run(name, func(t *testing.T) {
			body := recorded(t, c.file)
			request, _, err := review.Parse(body)
			if err != nil {
				t.Fatal(err)
			}
			object := func(handlers []http.Handler) any {
				raw := request.Object.Raw
				for _, handler := range handlers {
					var review admissionv1.AdmissionReview
					if err := json.Unmarshal(newClient(body).send(handler).Body.Bytes(), &review); err != nil || !review.Response.Allowed {
						t.Fatalf("%v: %v", err, review.Response)
					}
					if len(review.Response.Patch) == 0 {
						continue
					}
					patch, err := jsonpatchapply.DecodePatch(review.Response.Patch)
					if err != nil {
						t.Fatal(err)
					}
					// Each of five webhooks gets the object as it came here, and
					// would add the annotations of its own again.
					if raw, err = patch.Apply(raw); err != nil {
						t.Fatalf("%v: %s", err, review.Response.Patch)
					}
				}
				var content any
				if err := json.Unmarshal(raw, &content); err != nil {
					t.Fatal(err)
				}
				return content
			}
			if difference := cmp.Diff(object(c.controllerRuntime), object(c.admitkit)); difference != "" {
				t.Errorf("controller-runtime (-) and admitkit (+):\n%s", difference)
			}
		})
	}
}

func TestAnAdmissionKeepsToItsBudgetOfAllocations(t *testing.T) {
	budgets := map[string]float64{
		"mutate": 145, "noop": 115, "chain5": 220, "large64k": 480, "update": 150, "metadata": 40, "connect": 30,
	}
	for name, c := range cases() {
		t.Run(name, func(t *testing.T) {
			client := newClient(recorded(t, c.file))
			// A busy machine only adds: it collects garbage more often, and with it
			// what pools hold.
			allocs := math.Inf(1)
			for try := 0; try < 10 && allocs > budgets[name]; try++ {
				allocs = min(allocs, testing.AllocsPerRun(100, func() {
					if recorder := client.send(c.admitkit[0]); recorder.Code != http.StatusOK {
						t.Fatalf("%d: %s", recorder.Code, recorder.Body)
					}
				}))
			}
			if allocs > budgets[name] {
				t.Errorf("%v allocations, the budget is %v", allocs, budgets[name])
			}
		})
	}
}

// TestTheCostOfAnAdmissionIsLinearInTheSize measures time, and so is no test for
// a busy machine.
func TestTheCostOfAnAdmissionIsLinearInTheSize(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	var x, y []float64
	for _, size := range []int{16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		body := enlarged(t, recorded(t, "create-pod-5k.json"), size)
		client, handler := newClient(body), ours(true, ourMutator(addVariable))[0]
		best := time.Hour
		for began := time.Now(); time.Since(began) < time.Second; {
			start := time.Now()
			if recorder := client.send(handler); recorder.Code != http.StatusOK {
				t.Fatalf("%d: %s", recorder.Code, recorder.Body)
			}
			best = min(best, time.Since(start)) // the least disturbed
		}
		t.Logf("%d bytes take %s", len(body), best)
		x, y = append(x, math.Log(float64(len(body)))), append(y, math.Log(float64(best)))
	}
	exponent := slope(x, y)
	fmt.Printf("FIGURE size.exponent=%.2f exponent\n", exponent)
	if exponent > 1.3 {
		t.Errorf("the time grows with the size to the power of %.2f", exponent)
	}
}

// enlarged returns a recorded review whose Pod has as many variables as make it
// of a size.
func enlarged(t *testing.T, body []byte, size int) []byte {
	t.Helper()
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
		t.Fatal(err)
	}
	container := &pod.Spec.Containers[0]
	for i := 0; i*64 < size; i++ {
		container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%06d", i), Value: "a value of some twenty letters"})
	}
	var err error
	if review.Request.Object.Raw, err = json.Marshal(&pod); err != nil {
		t.Fatal(err)
	}
	if body, err = json.Marshal(&review); err != nil {
		t.Fatal(err)
	}
	return body
}

// slope returns that of the least squares line.
func slope(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	n := float64(len(x))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}
