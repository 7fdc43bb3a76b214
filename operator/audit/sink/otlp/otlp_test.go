package otlp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	otlpsender "github.com/admitkit/admitkit/extension/otlp"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/otlp"
)

func TestARecordBecomesALogRecord(t *testing.T) {
	var got []*logspb.LogRecord
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &logspb.LogsData{}
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil {
			t.Error(err)
		}
		got = request.ResourceLogs[0].ScopeLogs[0].LogRecords
	}))
	t.Cleanup(endpoint.Close)
	logs := otlp.New(otlp.Options{Endpoint: otlpsender.Endpoint{URL: endpoint.URL}})
	if err := logs.(sink.Validated).Validate(); err != nil {
		t.Error(err)
	}
	record := audittest.Record("1", time.Now())
	record.DryRun = true
	if err := logs.Write(t.Context(), record); err != nil || len(got) != 0 {
		t.Errorf("%v: sent for a dry run: %+v", err, got)
	}
	record.DryRun = false
	record.Cluster = "prod"
	record.Flags = []v1alpha1.AuditFlag{v1alpha1.FlagBreakGlass}
	record.AccessRequest = &v1alpha1.AuditAccessRequest{Kind: "ExecAccessRequest", Name: "fix"}
	if err := logs.Write(t.Context(), record); err != nil || len(got) != 1 {
		t.Fatalf("%v: sent %+v", err, got)
	}
	var attributes []string
	for _, pair := range got[0].Attributes {
		value := pair.Value.GetStringValue()
		for _, each := range pair.Value.GetArrayValue().GetValues() {
			value += "," + each.GetStringValue()
		}
		attributes = append(attributes, pair.Key+"="+value)
	}
	want := []string{
		"log.record.uid=1", "user.name=alice", "k8s.cluster.name=prod", "k8s.namespace.name=shop", "k8s.pod.name=web", "process.command_args=,ls,-la",
		"admitkit.audit.way=pods/exec", "admitkit.audit.verb=connect", "admitkit.audit.decision=Allowed",
		"admitkit.audit.access_request=ExecAccessRequest/fix", "admitkit.audit.flags=,BreakGlass",
	}
	if !slices.Equal(attributes, want) {
		t.Errorf("the attributes are\n%q, want\n%q", attributes, want)
	}
	var body v1alpha1.AuditRecord
	if err := json.Unmarshal([]byte(got[0].Body.GetStringValue()), &body); err != nil || body.ID != "1" || strings.Join(body.Command, " ") != "ls -la" {
		t.Errorf("%v: the body is %v", err, got[0].Body)
	}
	if got[0].EventName != "admitkit.audit.record" || got[0].SeverityText != "WARN" || got[0].TimeUnixNano != uint64(record.Time.UnixNano()) {
		t.Errorf("sent %v", got[0])
	}
}

func TestARecordThatTheCollectorRejectsIsCountedAsLost(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
	t.Cleanup(endpoint.Close)
	rejected := make(chan int64, 1)
	options := otlp.Options{Endpoint: otlpsender.Endpoint{URL: endpoint.URL}, Dir: t.TempDir(), Rejected: func(n int64) { rejected <- n }}
	before := audittest.Metric(t, "admitkit_audit_lost_total", "otlp")
	logs := otlp.New(options)
	if err := logs.Write(t.Context(), audittest.Record("1", time.Now())); err != nil {
		t.Fatal(err)
	}
	stop := run(t, logs)
	if got := <-rejected; got != 1 {
		t.Errorf("%d records are rejected, want 1", got)
	}
	stop()
	if got := audittest.Metric(t, "admitkit_audit_lost_total", "otlp") - before; got != 1 {
		t.Errorf("%v are counted as lost, want 1", got)
	}
}
