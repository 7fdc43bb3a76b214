package review

import (
	"bytes"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/webhook/internal/limits"
	"github.com/admitkit/admitkit/webhook/internal/reviewtest"
)

// BenchmarkReview reads an AdmissionReview: the codec, and what it replaces.
func BenchmarkReview(b *testing.B) {
	for _, file := range recordings {
		body := recorded(b, file)
		b.Run(strings.TrimSuffix(file, ".json")+"/admitkit", func(b *testing.B) {
			request := reviewtest.NewRequest(body)
			recorder := httptest.NewRecorder()
			measure(b, body, func() error {
				request.Body = io.NopCloser(bytes.NewReader(body))
				body, err := Read(recorder, request, "an AdmissionReview", maxBody, &limits.Share{})
				if err != nil {
					return err
				}
				_, _, err = Parse(body)
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
