package audit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/afero"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
)

// noExecIsMissing execs from many clients, over SPDY and WebSocket, while the manager is
// killed and started again. Each exec that the API server's own audit log has as let through
// must be recorded once in each of two Closed sinks. While the manager is down every exec is
// refused, and the client tries again with another command.
func noExecIsMissing(t *testing.T) {
	clients, total := testkit.Long(32, 8), testkit.Long(20_000, 128)
	ns := testkit.ManagerNamespace(t, admin)
	pods := []string{"shop-0", "shop-1", "shop-2", "shop-3"}
	for _, pod := range pods {
		runPod(t, ns, pod)
	}
	options := processOptions{Namespace: ns, File: filepath.Join(t.TempDir(), "audit.jsonl"), Port: freeport.For(t)}
	t.Cleanup(register(t, manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{ns}, Host: "127.0.0.1", Port: options.Port}, options.closed()))
	running := startProcess(t, options)
	testkit.Eventually(t, "the API server calls the webhook", func(ctx context.Context) bool { return isCalled(ctx, t, ns) })
	var done atomic.Int64
	var killed, restarted time.Duration
	began := time.Now()
	half := make(chan struct{})
	var once sync.Once
	var clientsDone sync.WaitGroup
	for c := range clients {
		clientsDone.Go(func() {
			target := newExecer(t, ns, c)
			for i := c; i < total; i += clients {
				if !target.execUntilAllowed(t, pods[i%len(pods)], fmt.Sprintf("exec-%d", i)) {
					return
				}
				if done.Add(1) == int64(total/2) {
					once.Do(func() { close(half) })
				}
			}
		})
	}
	select {
	case <-half:
	case <-time.After(20 * time.Minute):
		t.Fatalf("only %d execs", done.Load())
	}
	running.Kill()
	killed = time.Since(began)
	running = startProcess(t, options)
	restarted = time.Since(began)
	clientsDone.Wait()
	took := time.Since(began) - (restarted - killed)
	running.Kill()
	compare(t, ns, options.File, total, took)
}

// execer execs as a client does, each with connections of its own.
type execer struct {
	clientset *kubernetes.Clientset
	executor  func(*rest.Config, *rest.Request) (remotecommand.Executor, error)
	ns        string
}

func newExecer(t *testing.T, ns string, n int) *execer {
	t.Helper()
	config := rest.CopyConfig(alice.Config)
	config.QPS = -1
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Error(err)
	}
	return &execer{clientset: clientset, ns: ns, executor: executors()[[]string{"SPDY", "WebSocket"}[n%2]]}
}

func (e *execer) exec(ctx context.Context, pod string, command ...string) error {
	url := e.clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(e.ns).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "web", Command: command, Stdout: true}, clientgoscheme.ParameterCodec)
	session, err := e.executor(alice.Config, url)
	if err != nil {
		return err
	}
	return session.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
}

// execUntilAllowed tries until the exec is let through, with another command
// each time, so that a record that is there twice shows.
func (e *execer) execUntilAllowed(t *testing.T, pod, name string) bool {
	for attempt := range 1000 {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		err := e.exec(ctx, pod, "true", fmt.Sprintf("%s.%d", name, attempt))
		cancel()
		if err == nil {
			return true
		}
		if !strings.Contains(err.Error(), "webhook") && !strings.Contains(err.Error(), "bad handshake") {
			t.Errorf("exec %s: %v", name, err)
			return false
		}
		select { // as a person would
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			return false
		}
	}
	t.Errorf("exec %s is never let through", name)
	return false
}

// compare compares the API server's audit log with what is in the sinks.
func compare(t *testing.T, ns, file string, total int, took time.Duration) {
	t.Helper()
	admitted := map[string]string{} // the record of each exec that was let through, and its command
	refused := 0
	for _, e := range serverEvents(t) {
		if e.ObjectRef.Namespace != ns || e.ObjectRef.Subresource != "exec" || strings.HasPrefix(e.ObjectRef.Name, "probe-") {
			continue
		}
		if e.Status.Code != http.StatusSwitchingProtocols {
			refused++
			continue
		}
		id := e.record()
		if id == "" {
			t.Errorf("%s went through without the webhook: %+v", e.URI, e)
			id = e.AuditID
		}
		admitted[id] = e.URI
	}
	if len(admitted) < total {
		t.Errorf("the API server let %d execs through, want %d", len(admitted), total)
	}
	objects, commands := auditEvents(t, ns)
	lines := map[string]int{}
	for _, id := range audittest.IDs(t, afero.NewOsFs(), file) {
		lines[id]++
	}
	missing, double := 0, 0
	for id := range admitted {
		if objects[id] != 1 || lines[id] == 0 {
			missing++
		}
		if lines[id] > 1 {
			double++
		}
	}
	for command, n := range commands {
		if n > 1 {
			double++
			t.Errorf("%d records of %s", n, command)
		}
	}
	if missing != 0 || double != 0 {
		t.Errorf("of %d execs %d are missing from the record, and %d are in it twice", len(admitted), missing, double)
	}
	t.Logf("%d execs let through, %d refused while the manager was down, %d AuditEvents, %d lines", len(admitted), refused, len(objects), len(lines))
	testkit.Figure("audit.execs", float64(len(admitted)), "execs")
	testkit.Figure("audit.missing", float64(missing), "execs")
	testkit.Figure("audit.double", float64(double), "execs")
	testkit.Figure("audit.execs_per_s", float64(total)/took.Seconds(), "execs/s")
}

// auditEvents are the AuditEvents of a namespace by name, and how many have a command. One
// that amends another, where a sink was too busy and the exec refused, has its command again.
func auditEvents(t *testing.T, ns string) (names, commands map[string]int) {
	t.Helper()
	names, commands = map[string]int{}, map[string]int{}
	options := &client.ListOptions{Limit: 1000}
	client.MatchingLabels{auditevent.LabelNamespace: ns, auditevent.LabelUser: "alice"}.ApplyToList(options)
	for {
		var list v1alpha1.AuditEventList
		if err := admin.List(t.Context(), &list, options); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			names[list.Items[i].Name]++
			if list.Items[i].Spec.Amends == "" {
				commands[strings.Join(list.Items[i].Spec.Command, " ")]++
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return names, commands
		}
	}
}

// TestAuditingAddsLittleToAnExec compares admission with and without the
// webhook: execs in a container that does not exist pass admission and end
// there, without the time that a kubelet takes, which varies.
func TestAuditingAddsLittleToAnExec(t *testing.T) {
	testkit.OnlyLong(t)
	audited, plain := testkit.ManagerNamespace(t, admin), testkit.ManagerNamespace(t, admin)
	runPod(t, audited, "shop")
	runPod(t, plain, "shop")
	start(t, audited, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: sink.NewFile(sink.FileOptions{Path: filepath.Join(t.TempDir(), "audit.jsonl")}), FailurePolicy: audit.Closed},
		{Sink: auditevent.New(auditevent.Options{FoldAfter: -1}), FailurePolicy: audit.Closed},
		{Sink: sink.NewLog()},
	}})
	config := rest.CopyConfig(alice.Config)
	config.QPS = -1
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(ns string) time.Duration {
		began := time.Now()
		err := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name("shop").SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: "none", Command: []string{"true"}, Stdout: true}, clientgoscheme.ParameterCodec).
			Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), "container none is not valid") {
			t.Fatalf("got %v, want that there is no such container", err)
		}
		return time.Since(began)
	}
	var with, without []time.Duration
	for range 2000 { // by turns, so that both have the same neighbours
		without = append(without, exec(plain))
		with = append(with, exec(audited))
	}
	names, _ := auditEvents(t, audited)
	if len(names) != len(with) {
		t.Errorf("%d execs, %d records", len(with), len(names))
	}
	added := func(p float64) float64 {
		return float64(testkit.Percentile(with, p)-testkit.Percentile(without, p)) / float64(time.Millisecond)
	}
	t.Logf("p50 %s with, %s without; p99 %s with, %s without", testkit.Percentile(with, .5), testkit.Percentile(without, .5), testkit.Percentile(with, .99), testkit.Percentile(without, .99))
	testkit.Figure("audit.added_p50_ms", added(.5), "ms")
	testkit.Figure("audit.added_p99_ms", added(.99), "ms")
}
