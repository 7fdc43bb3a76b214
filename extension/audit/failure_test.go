package audit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/internal/audittest"
	"github.com/admitkit/admitkit/extension/audit/sink"
	"github.com/admitkit/admitkit/extension/audit/sink/auditevent"
	"github.com/admitkit/admitkit/extension/audit/sink/cloudevents"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// poorUser is a manager that may write neither Events nor AuditEvents.
var poorUser = sync.OnceValues(func() (*controlplane.User, error) {
	user, err := cluster.AddUser("poor-manager", "poor-managers")
	if err != nil {
		return nil, err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "poor-manager"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "secrets"}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents"}, Verbs: []string{"list", "watch"}},
	}}
	if err := admin.Create(context.Background(), role); err != nil {
		return nil, err
	}
	return user, admin.Create(context.Background(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "poor-manager"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "poor-manager"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "poor-manager"}},
	})
})

// TestASinkThatFailsDoesWhatItsPolicySays breaks each sink in each way, and looks
// at what kubectl exec says and at the counters.
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
			return cloudevents.New(cloudevents.Options{URL: url})
		}
	}
	for name, test := range map[string]struct {
		sink func(*testing.T) sink.Sink
		poor bool
		want string // in what kubectl says
		long bool   // left out of the short form, since another is like it
	}{
		"the API refuses Events":      {func(*testing.T) sink.Sink { return sink.NewEvent() }, true, "forbidden", false},
		"the API refuses AuditEvents": {func(*testing.T) sink.Sink { return auditevent.New(auditevent.Options{}) }, true, "forbidden", true},
		"the disk is full": {func(*testing.T) sink.Sink {
			return sink.NewFile(sink.FileOptions{Path: "/dev/full"})
		}, false, "no space left on device", false},
		"the endpoint is down":   {cloudEvents("http://127.0.0.1:1"), false, "connection refused", true},
		"the endpoint is broken": {cloudEvents(broken.URL), false, "500 Internal Server Error", true},
		"the endpoint is slow":   {cloudEvents(slow.URL), false, "did not take the record within 200ms", false},
		"the endpoint is down and the queue full": {func(t *testing.T) sink.Sink {
			queue := cloudevents.New(cloudevents.Options{URL: "http://127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "queue"), MaxQueued: 1})
			if err := queue.Write(t.Context(), audittest.Record("1", time.Now())); err != nil {
				t.Fatal(err)
			}
			return queue
		}, false, "the queue is full: 1 events wait", true},
	} {
		if testing.Short() && test.long {
			continue
		}
		for _, policy := range []audit.FailurePolicy{audit.Open, audit.Closed} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				user := managerUser
				if test.poor {
					var err error
					if user, err = poorUser(); err != nil {
						t.Fatal(err)
					}
				}
				failing, ns := test.sink(t), testkit.ManagerNamespace(t, admin)
				good := &memory{}
				logs := startAs(t, user, ns, audit.Options{Sinks: []audit.SinkOptions{
					{Sink: failing, FailurePolicy: policy, Timeout: timeoutFor(test.want)},
					{Sink: good},
				}})
				runPod(t, ns, "shop")
				lost, refused := audittest.Metric(t, "admitkit_audit_lost_total", failing.Name()), audittest.Metric(t, "admitkit_audit_refused_total", failing.Name())
				output, err := cluster.Kubectl(t.Context(), alice, "-n", ns, "exec", "shop", "-c", "web", "--", "true").CombinedOutput()
				// kubectl asks twice when it is refused, over WebSocket and SPDY.
				asked := map[audit.FailurePolicy]int{audit.Open: 1, audit.Closed: 2}[policy]
				testkit.Eventually(t, "the other sink has the record", func(context.Context) bool { return len(good.of("alice")) == asked })
				record := good.of("alice")[0]
				if policy == audit.Open {
					if err != nil || record.Decision != "Allowed" {
						t.Errorf("%v: %s: the record is %+v", err, output, record)
					}
					testkit.Eventually(t, "the loss is counted", func(context.Context) bool {
						return audittest.Metric(t, "admitkit_audit_lost_total", failing.Name())-lost == 1
					})
					if logs.FilterMessage("record lost").Len() == 0 {
						t.Error("the loss is not logged")
					}
					return
				}
				if err == nil || !strings.Contains(string(output), "pods/exec of Pod "+ns+"/shop is only allowed when it is recorded") || !strings.Contains(string(output), test.want) {
					t.Errorf("%v: kubectl says: %s", err, output)
				}
				t.Logf("%s", output)
				if record.Decision != "Denied" || record.Rule != "unrecorded" || !strings.Contains(record.Reason, test.want) {
					t.Errorf("the other sink has %+v", record)
				}
				if got := audittest.Metric(t, "admitkit_audit_refused_total", failing.Name()) - refused; got < 2 {
					t.Errorf("%v refusals are counted, want 2", got)
				}
			})
		}
	}
}

// timeoutFor is short for the endpoint that is slow.
func timeoutFor(want string) time.Duration {
	if strings.Contains(want, "200ms") {
		return 200 * time.Millisecond
	}
	return 0
}
