package cloudevents_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/cloudevents"
	"github.com/admitkit/admitkit/testing/fakes"
)

func TestARecordBecomesAnEvent(t *testing.T) {
	var got []struct {
		ID, Source, Type, Subject, Cluster string
		Time                               time.Time
		Data                               v1alpha1.AuditRecord
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(endpoint.Close)
	events := cloudevents.New(cloudevents.Options{URL: endpoint.URL})
	if err := events.(sink.Validated).Validate(); err != nil {
		t.Error(err)
	}
	record := audittest.Record("1", time.Now())
	record.DryRun = true
	if err := events.Write(t.Context(), record); err != nil || len(got) != 0 {
		t.Errorf("%v: sent for a dry run: %+v", err, got)
	}
	record.DryRun, record.Cluster = false, "arn:aws:eks:eu-west-1:1:cluster/blue"
	if err := events.Write(t.Context(), record); err != nil || len(got) != 1 {
		t.Fatalf("%v: sent %+v", err, got)
	}
	e := got[0]
	if e.ID != "1" || e.Source != "admitkit.dev/audit" || e.Type != "dev.admitkit.audit.record.v1alpha1" || e.Subject != "/api/v1/namespaces/shop/pods/web" ||
		e.Time.IsZero() || e.Cluster != record.Cluster || e.Data.Cluster != record.Cluster || e.Data.ID != "1" || strings.Join(e.Data.Command, " ") != "ls -la" {
		t.Errorf("sent %+v", e)
	}
}

func TestARecordThatTheEndpointRejectsIsCountedAsLost(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
	t.Cleanup(endpoint.Close)
	rejected := make(chan json.RawMessage, 1)
	events := cloudevents.New(cloudevents.Options{URL: endpoint.URL, Dir: t.TempDir(), Rejected: func(event json.RawMessage) { rejected <- event }})
	kube, err := ctrlmanager.New(&rest.Config{Host: "https://127.0.0.1:1"}, ctrlmanager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	mgr := fakes.NewManager()
	mgr.GetKubeManagerReturns(kube)
	if err := events.(extension.Hosted).Register(mgr); err != nil {
		t.Fatal(err)
	}
	before := audittest.Metric(t, "admitkit_audit_lost_total", "cloudevents")
	if err := events.Write(t.Context(), audittest.Record("1", time.Now())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- kube.Start(ctx) }()
	if event := <-rejected; !strings.Contains(string(event), `"id":"1"`) {
		t.Errorf("rejected %s", event)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := audittest.Metric(t, "admitkit_audit_lost_total", "cloudevents") - before; got != 1 {
		t.Errorf("%v are counted as lost, want 1", got)
	}
}
