package audit_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// memory is a sink that keeps records for a test.
type memory struct {
	mu      sync.Mutex
	records []*v1alpha1.AuditRecord
}

func (*memory) Name() string { return "memory" }

func (m *memory) Write(_ context.Context, r *v1alpha1.AuditRecord) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = append(m.records, r.DeepCopy())
	return nil
}

// of returns the records of a user.
func (m *memory) of(user string) []*v1alpha1.AuditRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.records), func(r *v1alpha1.AuditRecord) bool {
		return r.User.Username != user || strings.HasPrefix(r.Pod, "probe-")
	})
}

// ways are the ways of records, in order.
func ways(records []*v1alpha1.AuditRecord) []v1alpha1.AuditWay {
	found := []v1alpha1.AuditWay{}
	for _, r := range records {
		found = append(found, r.Way)
	}
	return found
}

// onTerminal returns a command that runs in a terminal, which util-linux's
// script gives it.
func onTerminal(ctx context.Context, cmd *exec.Cmd) *exec.Cmd {
	var line strings.Builder
	for _, word := range cmd.Args {
		line.WriteString("'" + strings.ReplaceAll(word, "'", `'\''`) + "' ")
	}
	terminal := exec.CommandContext(ctx, "script", "-qec", line.String(), "/dev/null")
	terminal.Env, terminal.Dir = cmd.Env, cmd.Dir
	return terminal
}

// aWay is something that an engineer does with kubectl.
type aWay struct {
	name string
	run  func(ctx context.Context, ns string) *exec.Cmd
	// want are the ways in that it takes, one record of each.
	want []v1alpha1.AuditWay
	// endless says that it does not end by itself.
	endless bool
	check   func(t *testing.T, records []*v1alpha1.AuditRecord)
}

// kubectl runs kubectl as alice.
func kubectl(args ...string) func(context.Context, string) *exec.Cmd {
	return func(ctx context.Context, ns string) *exec.Cmd {
		return cluster.Kubectl(ctx, alice, append([]string{"-n", ns}, args...)...)
	}
}

// kubectlOnTerminal runs kubectl as alice in a terminal.
func kubectlOnTerminal(args ...string) func(context.Context, string) *exec.Cmd {
	return func(ctx context.Context, ns string) *exec.Cmd { return onTerminal(ctx, kubectl(args...)(ctx, ns)) }
}

// get reads a path of the API, with NS for the namespace.
func get(path string) func(context.Context, string) *exec.Cmd {
	return func(ctx context.Context, ns string) *exec.Cmd {
		return cluster.Kubectl(ctx, alice, "get", "--request-timeout=2s", "--raw", strings.ReplaceAll(path, "NS", ns))
	}
}

// hasFlags checks that records have flags.
func hasFlags(flags ...v1alpha1.AuditFlag) func(*testing.T, []*v1alpha1.AuditRecord) {
	return func(t *testing.T, records []*v1alpha1.AuditRecord) {
		for _, r := range records {
			for _, flag := range flags {
				if !slices.Contains(r.Flags, flag) {
					t.Errorf("the record of %s has the flags %v, want %s", r.Way, r.Flags, flag)
				}
			}
		}
	}
}

// sessions are the ways into an existing container.
func sessions(t *testing.T) []aWay {
	return []aWay{
		{name: "exec", run: kubectl("exec", "shop", "--", "true", "--password=s3cr3t"), want: []v1alpha1.AuditWay{v1alpha1.WayExec}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			r := records[0]
			if r.TTY || r.Stdin || r.Container != "web" || r.Image != "example.com/web:1" || r.Node != "node-0" || r.PodUID == "" || r.Command[1] != "--password=REDACTED" {
				t.Errorf("the record is %+v", r)
			}
		}},
		{name: "exec in a terminal", run: kubectlOnTerminal("exec", "-it", "shop", "-c", "log", "--", "true"), want: []v1alpha1.AuditWay{v1alpha1.WayExec}, endless: true, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			if r := records[0]; !r.TTY || !r.Stdin || r.Container != "log" {
				t.Errorf("the record is %+v", r)
			}
		}},
		{name: "cp", run: kubectl("cp", "shop:/etc/hostname", filepath.Join(t.TempDir(), "copied")), want: []v1alpha1.AuditWay{v1alpha1.WayExec}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			if r := records[0]; r.Command[0] != "tar" {
				t.Errorf("the record is %+v", r)
			}
		}},
		{name: "attach", run: kubectl("attach", "shop"), want: []v1alpha1.AuditWay{v1alpha1.WayAttach}, endless: true},
		{name: "port-forward", run: kubectl("port-forward", "pod/shop", ":8080"), want: []v1alpha1.AuditWay{v1alpha1.WayPortForward}, endless: true},
	}
}

// proxies are the ways to a port, and to the kubelet.
func proxies() []aWay {
	return []aWay{
		{name: "proxy to a Pod", run: get("/api/v1/namespaces/NS/pods/http:shop:8080/proxy/secret?a=b"), want: []v1alpha1.AuditWay{v1alpha1.WayPodProxy}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			if r := records[0]; r.Pod != "shop" || !slices.Equal(r.Ports, []string{"8080"}) || r.Path != "http:/secret" {
				t.Errorf("the record is %+v", r)
			}
		}},
		{name: "proxy to a Service", run: get("/api/v1/namespaces/NS/services/shop:80/proxy/"), want: []v1alpha1.AuditWay{v1alpha1.WayServiceProxy}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			if r := records[0]; r.Service != "shop" || r.Pod != "" {
				t.Errorf("the record is %+v", r)
			}
		}},
		{name: "proxy to the kubelet's exec", run: get("/api/v1/nodes/node-0/proxy/run/NS/shop/web?cmd=id"), want: []v1alpha1.AuditWay{v1alpha1.WayNodeProxy}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			hasFlags(v1alpha1.FlagKubelet)(t, records)
			if r := records[0]; r.Pod != "shop" || r.Container != "web" || r.Node != "node-0" || r.PodUID == "" {
				t.Errorf("the record is %+v", r)
			}
		}},
	}
}

// debugging are the ways through a new container or Pod.
func debugging() []aWay {
	return []aWay{
		{name: "debug", run: kubectl("debug", "shop", "--image=example.com/tools:1", "--target=web", "-c", "tools", "--", "sleep", "1"), want: []v1alpha1.AuditWay{v1alpha1.WayDebug}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			r := records[0]
			if len(r.Containers) != 1 || r.Containers[0].Target != "web" || r.Image != "example.com/tools:1" || strings.Join(r.Command, " ") != "sleep 1" || r.Verb != "update" {
				t.Errorf("the record is %+v", r)
			}
		}},
		{name: "debug and attach", run: kubectl("debug", "-i", "shop", "--image=example.com/tools:1", "-c", "inside"), want: []v1alpha1.AuditWay{v1alpha1.WayDebug, v1alpha1.WayAttach}, endless: true, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			if records[0].PodUID != records[1].PodUID || records[1].Container != "inside" || records[0].Container != "inside" {
				t.Errorf("the records are not linked: %+v, %+v", records[0], records[1])
			}
			hasFlags(v1alpha1.FlagEphemeral)(t, records[1:])
		}},
		{name: "debug by copy", run: kubectl("debug", "-i", "shop", "--copy-to=copy", "--image=example.com/tools:1", "-c", "inside"), want: []v1alpha1.AuditWay{v1alpha1.WayPod, v1alpha1.WayAttach}, endless: true, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			hasFlags(v1alpha1.FlagInteractive)(t, records[:1])
			if records[1].Pod != "copy" {
				t.Errorf("the records are not linked: %+v, %+v", records[0], records[1])
			}
		}},
		{name: "set image", run: kubectl("set", "image", "pod/shop", "web=example.com/mine:1"), want: []v1alpha1.AuditWay{v1alpha1.WayPod}, check: func(t *testing.T, records []*v1alpha1.AuditRecord) {
			r := records[0]
			if r.Verb != "update" || r.Pod != "shop" || r.PodUID == "" || r.Container != "web" || r.Image != "example.com/mine:1" || len(r.Containers) != 1 {
				t.Errorf("the record is %+v", r)
			}
		}},
		{
			name: "a capability", run: kubectl("run", "capable", "--image=example.com/tools:1", `--overrides={"spec":{"containers":[{"name":"capable","image":"a","securityContext":{"capabilities":{"add":["CHOWN","SYS_ADMIN"]}}}]}}`), want: []v1alpha1.AuditWay{v1alpha1.WayPod},
			check: hasFlags(v1alpha1.FlagCapabilities),
		},
		{
			name: "a process of a Windows node", run: kubectl("run", "windows", "--image=example.com/tools:1", `--overrides={"spec":{"hostNetwork":true,"securityContext":{"windowsOptions":{"hostProcess":true}}}}`), want: []v1alpha1.AuditWay{v1alpha1.WayPod},
			check: hasFlags(v1alpha1.FlagHostProcess),
		},
		{
			// The API server gives up on an expression that takes too long.
			name: "a capability behind many", run: kubectl("run", "hidden", "--image=example.com/tools:1", `--overrides={"spec":{"containers":[{"name":"hidden","image":"a","securityContext":{"capabilities":{"add":[`+
				strings.Repeat(`"CHOWN",`, 10_000)+`"SYS_ADMIN"]}}}]}}`), want: []v1alpha1.AuditWay{v1alpha1.WayPod},
			check: hasFlags(v1alpha1.FlagCapabilities),
		},
		{
			name: "debug node", run: kubectl("debug", "-i", "node/node-0", "--image=example.com/tools:1"), want: []v1alpha1.AuditWay{v1alpha1.WayPod, v1alpha1.WayAttach}, endless: true,
			check: hasFlags(v1alpha1.FlagHostNamespace, v1alpha1.FlagHostPath),
		},
	}
}

func everyWayInIsRecordedOnce(t *testing.T) {
	all := slices.Concat(sessions(t), proxies(), debugging())
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	start(t, ns, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: kept, FailurePolicy: audit.Closed},
		{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed},
		{Sink: sink.NewEvent()},
	}})
	pod := runPod(t, ns, "shop")
	testkit.Create(t, admin, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: ns}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "shop"}, Ports: []corev1.ServicePort{{Port: 80}},
	}})
	go runEphemeralContainers(t, pod)
	for _, way := range all {
		t.Run(way.name, func(t *testing.T) {
			before, known := len(kept.of("alice")), len(acts(t, ns))
			// The API server knows of it once admission is over.
			take(t, way, ns, func() bool { return len(acts(t, ns))-known >= len(way.want) })
			got := kept.of("alice")[before:]
			if !slices.Equal(ways(got), way.want) {
				t.Fatalf("recorded %v, want %v", ways(got), way.want)
			}
			t.Logf("%s: %v", way.name, ways(got))
			for _, r := range got {
				if r.Decision != v1alpha1.AuditAllowed || r.User.Username != "alice" || !slices.Contains(r.User.Groups, "developers") || r.Time.IsZero() || r.ID == "" {
					t.Errorf("the record is %+v", r)
				}
			}
			if way.check != nil {
				way.check(t, got)
			}
		})
	}
	sameAsTheServers(t, kept.of("alice"), ns)
	testkit.Figure("audit.ways_in", float64(len(all)), "ways")
}

// take takes a way in: until it ends, or, if it is endless, until it is recorded.
func take(t *testing.T, way aWay, ns string, recorded func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := way.run(ctx, ns)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second
	if cmd.Stdin == nil {
		// Standard input stays open, as it does in a terminal.
		in, keep, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		defer keep.Close()
		cmd.Stdin = in
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if way.endless {
		defer func() {
			if t.Failed() {
				t.Logf("%s: %s", cmd, output.String())
			}
		}()
		defer func() {
			cancel()
			_ = cmd.Wait()
		}()
		testkit.Eventually(t, way.name+" is recorded", func(context.Context) bool { return recorded() })
		return
	}
	err := cmd.Wait()
	t.Logf("%v: %s", err, output.String())
	testkit.Eventually(t, way.name+" is recorded", func(context.Context) bool { return recorded() })
}

// runEphemeralContainers is the part of the kubelet that kwok has not: the
// ephemeral containers of the Pod run. It ends with the test.
func runEphemeralContainers(t *testing.T, pod *corev1.Pod) {
	pods := kubernetes.NewForConfigOrDie(cluster.Config()).CoreV1().Pods(pod.Namespace)
	w, err := admin.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(pod.Namespace), client.MatchingFields{"metadata.name": pod.Name})
	if err != nil {
		t.Error(err)
		return
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		p, ok := event.Object.(*corev1.Pod)
		if !ok || len(p.Status.EphemeralContainerStatuses) == len(p.Spec.EphemeralContainers) {
			continue
		}
		p.Status.EphemeralContainerStatuses = nil
		for i := range p.Spec.EphemeralContainers {
			p.Status.EphemeralContainerStatuses = append(p.Status.EphemeralContainerStatuses, corev1.ContainerStatus{
				Name: p.Spec.EphemeralContainers[i].Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			})
		}
		// A conflict brings another event.
		_, _ = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	}
}

// sameAsTheServers compares the records with the API server's own audit log: the
// acts of alice, each once, and with the AuditEvents.
func sameAsTheServers(t *testing.T, records []*v1alpha1.AuditRecord, ns string) {
	t.Helper()
	ours := map[string]int{}
	for _, r := range records {
		ours[r.ID]++
		var event v1alpha1.AuditEvent
		if err := admin.Get(t.Context(), client.ObjectKey{Name: r.ID}, &event); err != nil {
			t.Errorf("record %s: %v", r.ID, err)
		}
	}
	theirs := acts(t, ns)
	for _, e := range theirs {
		if ours[e.record()] != 1 {
			t.Errorf("%s %s: %d records, want 1", e.Verb, e.URI, ours[e.record()])
		}
	}
	if len(theirs) != len(ours) {
		t.Errorf("the API server knows of %d acts, there are records of %d", len(theirs), len(ours))
	}
}

// acts are the ways in that alice took, as the API server's audit log has them.
func acts(t *testing.T, ns string) []serverEvent {
	t.Helper()
	return slices.DeleteFunc(serverEvents(t), func(e serverEvent) bool {
		isAct := e.ObjectRef.Subresource != "" && e.ObjectRef.Subresource != "log" || e.ObjectRef.Resource == "pods" && (e.Verb == "create" || e.Verb == "patch")
		return e.User.Username != "alice" || !strings.Contains(e.URI, ns) || !isAct
	})
}

// The sink is Closed, so an update fails once no manager runs, if the API server sends it.
func TestOnlyUpdatesOfImagesBySomebodyElseReachTheManager(t *testing.T) {
	t.Parallel()
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	options := audit.Options{WithoutNodeProxy: true, ImageUpdaters: []string{"updater", `Doe, "Jane"`}, Sinks: []audit.SinkOptions{{Sink: kept, FailurePolicy: audit.Closed}}}
	_, stop := startUntil(t, managerUser, ns, options)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: ns}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "example.com/first:1"}}
	pod.Spec.SchedulerName = "none"
	// The comparison of images has a budget, which a large Pod must not exceed.
	for i := range testkit.Long(5000, 1500) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "example.com/a:1"})
	}
	testkit.Create(t, admin, pod)
	patch := func(user *controlplane.User, patch string) testkit.Answer {
		return testkit.Send(t, user, "PATCH", "/api/v1/namespaces/"+ns+"/pods/shop", testkit.AsPatch, patch)
	}
	updater := updaterOf(t)
	const (
		label   = `[{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]`
		last    = `[{"op": "replace", "path": "/spec/containers/1499/image", "value": "example.com/mine:1"}]`
		initial = `[{"op": "replace", "path": "/spec/initContainers/0/image", "value": "example.com/mine:1"}]`
		back    = `[{"op": "replace", "path": "/spec/initContainers/0/image", "value": "example.com/first:1"}]`
	)
	for _, change := range []string{label, last, initial} {
		if a := patch(alice, change); a.Code != http.StatusOK {
			t.Fatalf("%s: %s", change, a)
		}
	}
	var images []string
	for _, r := range kept.of("alice") {
		images = append(images, r.Container+" "+r.Image)
	}
	// The API server asks again if what it patches was not the latest.
	if images = slices.Compact(images); !slices.Equal(images, []string{"c1499 example.com/mine:1", "first example.com/mine:1"}) {
		t.Fatalf("recorded %q", images)
	}

	stop()
	if a := patch(alice, back); a.Code < 300 || !strings.Contains(a.Body, "failed calling webhook") {
		t.Errorf("an image without a record: %s", a)
	}
	if a := patch(alice, strings.ReplaceAll(label, "b", "c")); a.Code != http.StatusOK {
		t.Errorf("a label: %s", a)
	}
	testkit.Eventually(t, "an updater may give it an image", func(context.Context) bool { return patch(updater, back).Code == http.StatusOK })
}

// updaterOf returns a user who may update Pods.
func updaterOf(t *testing.T) *controlplane.User {
	t.Helper()
	user, err := cluster.AddUser("updater", "developers")
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func TestSessionsOverSPDYAndWebSocketAreRecordedAlike(t *testing.T) {
	t.Parallel()
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	start(t, ns, audit.Options{WithoutNodeProxy: true, Sinks: []audit.SinkOptions{{Sink: kept, FailurePolicy: audit.Closed}}})
	runPod(t, ns, "shop")
	clientset := kubernetes.NewForConfigOrDie(alice.Config)
	target := func(subresource string) *rest.Request {
		return clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name("shop").SubResource(subresource)
	}
	for protocol, open := range executors() {
		for name, tty := range map[string]bool{"exec": false, "exec in a terminal": true} {
			t.Run(protocol+": "+name, func(t *testing.T) {
				before := len(kept.of("alice"))
				// kwok may lose the output of a command that ends at once.
				command := []string{"sh", "-c", "echo " + protocol + "; sleep 2"}
				url := target("exec").VersionedParams(&corev1.PodExecOptions{
					Container: "web", Command: command, Stdin: tty, Stdout: true, Stderr: !tty, TTY: tty,
				}, clientgoscheme.ParameterCodec)
				if line := firstLine(t, open, url, tty); line != protocol {
					t.Errorf("the command said %q", line)
				}
				got := kept.of("alice")[before:]
				if len(got) != 1 || got[0].Way != v1alpha1.WayExec || got[0].TTY != tty || got[0].Stdin != tty || !slices.Equal(got[0].Command, command) {
					t.Errorf("recorded %+v", got)
				}
			})
		}
		t.Run(protocol+": attach", func(t *testing.T) {
			before := len(kept.of("alice"))
			url := target("attach").VersionedParams(&corev1.PodAttachOptions{Container: "web", Stdout: true}, clientgoscheme.ParameterCodec)
			attachUntil(t, open, url, func() bool { return len(kept.of("alice")) > before })
			if got := kept.of("alice")[before:]; len(got) != 1 || got[0].Way != v1alpha1.WayAttach {
				t.Errorf("recorded %+v", got)
			}
		})
	}
	for protocol, dial := range dialers(t, func() *rest.Request { return target("portforward") }) {
		t.Run(protocol+": port-forward", func(t *testing.T) {
			before := len(kept.of("alice"))
			err := dial()
			if got := kept.of("alice")[before:]; err != nil || len(got) != 1 || got[0].Way != v1alpha1.WayPortForward {
				t.Errorf("%v: recorded %+v", err, got)
			}
		})
	}
}

// newExecutor opens a session over SPDY or WebSocket.
type newExecutor = func(*rest.Config, *rest.Request) (remotecommand.Executor, error)

// firstLine execs, and returns the first line that the command prints.
func firstLine(t *testing.T, open newExecutor, url *rest.Request, tty bool) string {
	t.Helper()
	session, err := open(alice.Config, url)
	if err != nil {
		t.Fatal(err)
	}
	said, out := io.Pipe()
	streams := remotecommand.StreamOptions{Stdout: out, Tty: tty}
	if tty { // kwok dies of a terminal without standard input
		stdin, keep := io.Pipe()
		defer keep.Close()
		streams.Stdin = stdin
	} else {
		streams.Stderr = io.Discard
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = out.CloseWithError(session.StreamWithContext(ctx, streams))
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	return strings.TrimSpace(line)
}

// attachUntil attaches to a container until the attach is recorded.
func attachUntil(t *testing.T, open newExecutor, url *rest.Request, recorded func() bool) {
	t.Helper()
	session, err := open(alice.Config, url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = session.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
	}()
	testkit.Eventually(t, "the attach is recorded", func(context.Context) bool { return recorded() })
	cancel()
	<-done
}

func executors() map[string]newExecutor {
	return map[string]newExecutor{
		"SPDY": func(config *rest.Config, r *rest.Request) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(config, http.MethodPost, r.URL())
		},
		"WebSocket": func(config *rest.Config, r *rest.Request) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(config, http.MethodGet, r.URL().String())
		},
	}
}

// dialers open a port-forward and end it.
func dialers(t *testing.T, target func() *rest.Request) map[string]func() error {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(alice.Config)
	if err != nil {
		t.Fatal(err)
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target().URL())
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target().URL(), alice.Config)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]func() error{
		"SPDY": func() error {
			connection, _, err := overSPDY.Dial(portforward.PortForwardProtocolV1Name)
			if err != nil {
				return err
			}
			return connection.Close()
		},
		"WebSocket": func() error {
			connection, _, err := overWebSocket.Dial(portforward.PortForwardProtocolV1Name)
			if err != nil {
				return err
			}
			return connection.Close()
		},
	}
}
