package webhook

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/extension"
)

// BenchmarkReview reads an AdmissionReview: the codec, and what it replaces.
func BenchmarkReview(b *testing.B) {
	for _, file := range recordings {
		body := recorded(b, file)
		b.Run(strings.TrimSuffix(file, ".json")+"/admitkit", func(b *testing.B) {
			request := newRequest(body)
			recorder := httptest.NewRecorder()
			measure(b, body, func() error {
				request.Body = io.NopCloser(bytes.NewReader(body))
				_, err := readReview(recorder, request, DefaultMaxBodyBytes)
				return err
			})
		})
		b.Run(strings.TrimSuffix(file, ".json")+"/apimachinery", func(b *testing.B) {
			measure(b, body, func() error {
				read, err := io.ReadAll(bytes.NewReader(body))
				if err != nil {
					return err
				}
				return kjson.UnmarshalCaseSensitivePreserveInts(read, &admissionv1.AdmissionReview{})
			})
		})
	}
}

// BenchmarkNoop answers a request by a handler that changes nothing. The floor
// is what no implementation can do without: the recorder, a look at all of the
// body, and one decode of the object.
func BenchmarkNoop(b *testing.B) {
	for _, file := range []string{"create-pod-5k.json", "create-pod-64k.json"} {
		body := recorded(b, file)
		request, err := parseReview(body)
		if err != nil {
			b.Fatal(err)
		}
		noop := extension.MutatorFunc[*corev1.Pod](func(context.Context, *corev1.Pod, *extension.Request) error { return nil })
		metadata := extension.ValidatorFunc[*metav1.PartialObjectMetadata](func(context.Context, *metav1.PartialObjectMetadata, *extension.Request) error { return nil })
		for name, handler := range map[string]http.Handler{
			"admitkit": (&Webhook{Name: "noop", Mutating: true, Handlers: []*extension.Admission{extension.Mutating(noop, extension.Scope{})}}).
				Handler(HandlerOptions{}),
			"admitkit-metadata": (&Webhook{Name: "noop", Handlers: []*extension.Admission{extension.Validating(metadata, extension.Scope{})}}).
				Handler(HandlerOptions{}),
			"controller-runtime": admission.WithDefaulter(clientgoscheme.Scheme, noopDefaulter{}),
			"floor": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if !json.Valid(body) || extension.Decode(request.Object.Raw, &corev1.Pod{}) != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}),
		} {
			b.Run(strings.TrimSuffix(file, ".json")+"/"+name, func(b *testing.B) {
				measure(b, body, func() error {
					recorder := httptest.NewRecorder()
					handler.ServeHTTP(recorder, newRequest(body))
					if recorder.Code != http.StatusOK {
						b.Fatalf("%d: %s", recorder.Code, recorder.Body)
					}
					return nil
				})
			})
		}
	}
}

type noopDefaulter struct{}

func (noopDefaulter) Default(context.Context, *corev1.Pod) error { return nil }

var _ admission.Defaulter[*corev1.Pod] = noopDefaulter{}

// BenchmarkConnect answers an exec, whose object is a PodExecOptions.
func BenchmarkConnect(b *testing.B) {
	body := recorded(b, "connect-exec.json")
	noop := extension.ValidatorFunc[*corev1.PodExecOptions](func(context.Context, *corev1.PodExecOptions, *extension.Request) error { return nil })
	decoder := admission.NewDecoder(clientgoscheme.Scheme)
	for name, handler := range map[string]http.Handler{
		"admitkit": (&Webhook{Name: "noop", Handlers: []*extension.Admission{extension.Validating(noop, extension.Scope{})}}).
			Handler(HandlerOptions{}),
		"controller-runtime": &admission.Webhook{Handler: admission.HandlerFunc(func(_ context.Context, req admission.Request) admission.Response {
			var options corev1.PodExecOptions
			if err := decoder.DecodeRaw(req.Object, &options); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			return admission.Allowed("")
		})},
	} {
		b.Run(name, func(b *testing.B) {
			measure(b, body, func() error {
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, newRequest(body))
				if recorder.Code != http.StatusOK || !strings.Contains(recorder.Body.String(), `"allowed":true`) {
					b.Fatalf("%d: %s", recorder.Code, recorder.Body)
				}
				return nil
			})
		})
	}
}

func measure(b *testing.B, body []byte, do func() error) {
	b.Helper()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
}
