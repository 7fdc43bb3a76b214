package audit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/internal/offline/memcluster"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
)

// TestASinkThatFailsDoesWhatItsPolicySays breaks each sink in each way, and looks
// at what the user is told, at the other sink, and at the counters.
func TestASinkThatFailsDoesWhatItsPolicySays(t *testing.T) {
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees the client go
		<-r.Context().Done()
	}))
	t.Cleanup(slow.Close)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	t.Cleanup(broken.Close)
	cloudEvents := func(url string) func(*testing.T) sink.Sink {
		return func(*testing.T) sink.Sink {
			return deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: url}})
		}
	}
	for name, test := range map[string]struct {
		sink    func(*testing.T) sink.Sink
		timeout time.Duration
		want    string // in what the user is told
	}{
		"the API refuses Events":      {func(*testing.T) sink.Sink { return sink.NewEvent() }, 0, "forbidden"},
		"the API refuses AuditEvents": {func(*testing.T) sink.Sink { return auditevent.New(auditevent.Options{}) }, 0, "forbidden"},
		"the disk is full":            {func(*testing.T) sink.Sink { return sink.NewFile(sink.FileOptions{Path: "/dev/full"}) }, 0, "no space left on device"},
		"the endpoint is down":        {cloudEvents("http://127.0.0.1:1"), 0, "connection refused"},
		"the endpoint is broken":      {cloudEvents(broken.URL), 0, "500 Internal Server Error"},
		"the endpoint is slow":        {cloudEvents(slow.URL), 200 * time.Millisecond, "did not take the record within 200ms"},
		"the endpoint is down and the queue full": {func(t *testing.T) sink.Sink {
			queue := deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: "http://127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "queue"), MaxQueued: 1}})
			if err := queue.Write(t.Context(), audittest.Record("1", time.Now())); err != nil {
				t.Fatal(err)
			}
			return queue
		}, 0, "the queue is full: 1 events wait"},
	} {
		for _, policy := range []audit.FailurePolicy{audit.Open, audit.Closed} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				failing, good := test.sink(t), &memory{}
				account := inMemory(t).NewAccount()
				account.Restrict(&memcluster.Rights{})
				core, logs := observer.New(zap.WarnLevel)
				a := newAloneAt(t, memcluster.Config(account), audit.Options{Sinks: []audit.SinkOptions{
					{Sink: failing, FailurePolicy: policy, Timeout: test.timeout},
					{Sink: good},
				}}, zap.New(core))
				stop := a.run(t)
				lost, refused := audittest.Metric(t, "admitkit_audit_lost_total", failing.Name()), audittest.Metric(t, "admitkit_audit_refused_total", failing.Name())
				err := a.exec(t, "2", "shop", "true")
				stop()
				if got := good.of("alice"); len(got) != 1 {
					t.Fatalf("the other sink has %+v", got)
				}
				record := good.of("alice")[0]
				if policy == audit.Open {
					if err != nil || record.Decision != "Allowed" {
						t.Errorf("%v: the record is %+v", err, record)
					}
					if got := audittest.Metric(t, "admitkit_audit_lost_total", failing.Name()) - lost; got != 1 {
						t.Errorf("%v losses are counted, want 1", got)
					}
					if logs.FilterMessage("record lost").Len() == 0 {
						t.Error("the loss is not logged")
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), "pods/exec of Pod default/shop is only allowed when it is recorded") || !strings.Contains(err.Error(), test.want) {
					t.Errorf("the user is told: %v", err)
				}
				if record.Decision != "Denied" || record.Rule != "unrecorded" || !strings.Contains(record.Reason, test.want) {
					t.Errorf("the other sink has %+v", record)
				}
				if got := audittest.Metric(t, "admitkit_audit_refused_total", failing.Name()) - refused; got != 1 {
					t.Errorf("%v refusals are counted, want 1", got)
				}
			})
		}
	}
}

// One sink stands for all: what each of them says is tested above.
func TestAnExecWithoutARecordIsRefusedToWhoeverUsesKubectl(t *testing.T) {
	t.Parallel()
	poor, err := cluster.AddUser("poor-manager", "poor-managers")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Grant(t, admin, "", poor.Name, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "secrets"}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
	}, poor.Name)
	ns, good := testkit.ManagerNamespace(t, admin), &memory{}
	startAs(t, poor, ns, audit.Options{WithoutNodeProxy: true, Sinks: []audit.SinkOptions{{Sink: sink.NewEvent(), FailurePolicy: audit.Closed}, {Sink: good}}})
	runPod(t, ns, "shop")
	output, err := cluster.Kubectl(t.Context(), alice, "-n", ns, "exec", "shop", "-c", "web", "--", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(output), "pods/exec of Pod "+ns+"/shop is only allowed when it is recorded") || !strings.Contains(string(output), "forbidden") {
		t.Errorf("%v: kubectl says: %s", err, output)
	}
	// kubectl asks twice when it is refused, over WebSocket and SPDY.
	testkit.Eventually(t, "the other sink has both records", func(context.Context) bool { return len(good.of("alice")) == 2 })
	for _, record := range good.of("alice") {
		if record.Decision != "Denied" || record.Rule != "unrecorded" || !strings.Contains(record.Reason, "forbidden") {
			t.Errorf("the other sink has %+v", record)
		}
	}
}
