package deliver_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
	"github.com/admitkit/admitkit/testing/fakes"
)

// run registers a sink and runs what it starts, until stop is called.
func run(t *testing.T, s sink.Sink) (stop func()) {
	t.Helper()
	kube, start := testkit.Alone(t)
	mgr := fakes.NewManager()
	mgr.GetKubeManagerReturns(kube)
	if err := s.(extension.Hosted).Register(mgr); err != nil {
		t.Fatal(err)
	}
	return start()
}

func TestARecordThatTheServerRejectsIsCountedAsLost(t *testing.T) {
	for name, of := range map[string]func(deliver.Options) sink.Sink{
		"cloudevents": func(o deliver.Options) sink.Sink { return deliver.NewCloudEvents(deliver.EventOptions{Options: o}) },
		"otlp":        func(o deliver.Options) sink.Sink { return deliver.NewOTLP(deliver.OTLPOptions{Options: o}) },
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
			t.Cleanup(endpoint.Close)
			rejected := make(chan []byte, 10)
			records := of(deliver.Options{URL: endpoint.URL, Dir: t.TempDir(), Rejected: func(item []byte) { rejected <- item }})
			before := audittest.Metric(t, "admitkit_audit_lost_total", name)
			stop := run(t, records)
			if err := records.Write(t.Context(), audittest.Record("1", time.Now())); err != nil {
				t.Fatal(err)
			}
			if item := <-rejected; !strings.Contains(string(item), `"id":"1"`) {
				t.Errorf("rejected %s", item)
			}
			stop()
			if got := audittest.Metric(t, "admitkit_audit_lost_total", name) - before; got != 1 || len(rejected) > 0 {
				t.Errorf("%v are counted as lost, want 1", got)
			}
		})
	}
}
