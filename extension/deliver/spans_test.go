package deliver_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/admitkit/admitkit/extension/deliver"
)

func TestSpansArriveAndTheOnesThatAreRejectedAreAnError(t *testing.T) {
	got := &tracepb.TracesData{}
	answer := status(http.StatusOK)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, got)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Authorization") != "Bearer s3cr3t" {
			t.Errorf("%v: got %s with %q", err, r.URL.Path, r.Header)
		}
		answer(w, r, nil)
	}))
	t.Cleanup(collector.Close)
	token := filepath.Join(t.TempDir(), "token")
	spans := deliver.NewSpans(deliver.OTLPOptions{Options: deliver.Options{Name: "spans", URL: collector.URL, TokenFile: token}})
	if err := spans.Start(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "TokenFile: open "+token) {
		t.Errorf("got %v, want the file that is missing", err)
	}
	write(t, token, "s3cr3t")
	batch := []*tracepb.ResourceSpans{{SchemaUrl: "of the test"}}
	if err := spans.UploadTraces(t.Context(), batch); err != nil || len(got.ResourceSpans) != 1 || got.ResourceSpans[0].SchemaUrl != "of the test" {
		t.Errorf("%v: the collector has %v", err, got)
	}
	for want, says := range map[string]func(http.ResponseWriter, *http.Request, []string) bool{
		"503 Service Unavailable": status(http.StatusServiceUnavailable), "rejected 1 spans: too old": partially(1, "too old"),
	} {
		answer = says
		if err := spans.UploadTraces(t.Context(), batch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if err := spans.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
