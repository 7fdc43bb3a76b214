package deliver_test

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

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
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
	logs := deliver.NewOTLP(deliver.OTLPOptions{Options: deliver.Options{URL: endpoint.URL}})
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
