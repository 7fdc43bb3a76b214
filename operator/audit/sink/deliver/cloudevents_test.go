package deliver_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
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
	events := deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: endpoint.URL}})
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
