package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// replicaEnv makes the test binary one replica of the rotation tests, a process
// of its own, so that signals and crashes are real.
const replicaEnv = "MANAGER_TEST_REPLICA"

// replicaConfig configures a replica, as JSON in replicaEnv.
type replicaConfig struct {
	KubeConfig, Home, Apps, Health string
	Port, ServicePort              int32
	// CrashFile holds a step. The first process that takes it removes the file and
	// dies.
	CrashFile string
}

const (
	rotationService = "my-ext"
	// replicaLeaf is renewed when a third is left. On a busy machine a handshake with the old leaf has taken 2 s.
	replicaLeaf = 15 * time.Second
	watchDelay  = 5 * time.Second
	// propagation is how long the API server has to learn of a new CA, and drain how long the balancer has to see that
	// a replica is not ready. On a busy machine both have taken more than 2 s.
	propagation, drainPeriod = 4 * time.Second, 6 * time.Second
)

func replicaMain() {
	var config replicaConfig
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "replica:", err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv(replicaEnv)), &config))
	connection, err := clientcmd.BuildConfigFromFlags("", config.KubeConfig)
	fail(err)
	connection.Wrap(func(next http.RoundTripper) http.RoundTripper { return lateWatches{next} })
	drain := drainPeriod
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "admitkit", RESTConfig: connection, Namespaces: []string{config.Apps}, WebhookNamespace: config.Home,
		ServiceName: rotationService, Serving: manager.ServingOptions{ServicePort: config.ServicePort, HealthAddress: config.Health, DrainPeriod: &drain}, Host: "127.0.0.1", Port: config.Port,
		Certificates: manager.CertificateOptions{CALifetime: time.Hour, LeafLifetime: replicaLeaf, PropagationDelay: propagation, OnChange: func(c certs.Change) {
			fmt.Printf("STEP %s\n", c.Step)
			if step, err := os.ReadFile(config.CrashFile); err == nil && certs.Step(step) == c.Step && os.Remove(config.CrashFile) == nil {
				// Like a crash: no deferred calls, no flush.
				fail(syscall.Kill(os.Getpid(), syscall.SIGKILL))
				select {}
			}
		}},
	})
	fail(err)
	fail(mgr.AddExtension(mark("a", extension.Scope{Name: "mark"})))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fail(mgr.Start(ctx))
}

// lateWatches delays the events of watches by up to five seconds.
type lateWatches struct{ next http.RoundTripper }

func (l lateWatches) WrappedRoundTripper() http.RoundTripper { return l.next }

func (l lateWatches) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		response.Body = lateBody{response.Body}
	}
	return response, err
}

type lateBody struct{ io.ReadCloser }

func (b lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		time.Sleep(rand.N(watchDelay)) // the delay is what is under test
	}
	return n, err
}

// replica is one process.
type replica struct {
	config  replicaConfig
	cmd     *exec.Cmd
	log     *stepLog
	exited  chan error
	address string
}

// stepLog keeps the output of replicas and counts their steps.
type stepLog struct {
	mu    sync.Mutex
	text  bytes.Buffer
	steps map[certs.Step]int
}

func (l *stepLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		if step, found := strings.CutPrefix(strings.TrimSpace(line), "STEP "); found {
			l.steps[certs.Step(step)]++
		}
	}
	return l.text.Write(p)
}

func (l *stepLog) count(step certs.Step) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.steps[step]
}

// balancer stands in for a Service: it passes connections to the ready backends in
// turn.
type balancer struct {
	listener net.Listener
	next     atomic.Int64
	// ended counts connections that a server ended before its client.
	ended atomic.Int64
	mu    sync.Mutex
	ready map[string]string // addresses
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.proxy(conn)
		}
	}()
	return b
}

// watch checks every 100 ms which replicas are ready.
func (b *balancer) watch(ctx context.Context, replicas []*replica) {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		ready := map[string]string{}
		for _, r := range replicas {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.config.Health+"/readyz", http.NoBody)
			if err != nil {
				return
			}
			response, err := client.Do(request)
			if err != nil {
				continue
			}
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				ready[r.address] = r.address
			}
		}
		if len(ready) == 0 {
			for _, r := range replicas { // the first start, of which nobody is served yet
				ready[r.address] = r.address
			}
		}
		b.mu.Lock()
		b.ready = ready
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (b *balancer) remove(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ready, address)
}

func (b *balancer) proxy(client net.Conn) {
	defer client.Close()
	b.mu.Lock()
	var addresses []string
	for address := range b.ready {
		addresses = append(addresses, address)
	}
	b.mu.Unlock()
	for range addresses {
		server, err := net.DialTimeout("tcp", addresses[int(b.next.Add(1))%len(addresses)], time.Second)
		if err != nil {
			continue
		}
		defer server.Close()
		clientEnded := make(chan error, 1)
		go func() {
			_, err := io.Copy(server, client)
			_ = server.(*net.TCPConn).CloseWrite()
			clientEnded <- err
		}()
		_, _ = io.Copy(client, server)
		select {
		case err := <-clientEnded:
			if err == nil {
				return
			}
		default:
		}
		b.ended.Add(1)
		return
	}
}

// rotation runs three replicas behind a balancer, and clients.
type rotation struct {
	t          *testing.T
	home, apps string
	crashFile  string
	log        *stepLog
	balancer   *balancer
	replicas   []*replica

	calls     atomic.Int64
	mu        sync.Mutex
	failures  []string
	stop      context.CancelFunc
	clients   sync.WaitGroup
	clientCtx context.Context
}

// split returns how many calls may have failed because they were in flight on a replica that died: no more than there
// were connections that it ended, by HTTP/1.1 with a call each. The others are those that failed for another reason.
func (r *rotation) split() (inFlight int, other []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, failure := range r.failures {
		if int64(inFlight) < r.balancer.ended.Load() && hungUp.MatchString(failure) {
			inFlight++
		} else {
			other = append(other, failure)
		}
	}
	return inFlight, other
}

// hungUp are the errors of calls whose server died.
var hungUp = regexp.MustCompile("EOF|connection reset by peer|broken pipe")

func newRotation(t *testing.T) *rotation {
	t.Helper()
	r := &rotation{t: t, home: newNamespace(t), apps: newNamespace(t), log: &stepLog{steps: map[certs.Step]int{}}}
	if _, err := clientset.CoreV1().Services(r.home).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: rotationService},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.balancer = newBalancer(t)
	r.crashFile = filepath.Join(t.TempDir(), "crash")
	for range 3 {
		port := freeport.For(t)
		r.replicas = append(r.replicas, &replica{log: r.log, address: fmt.Sprintf("127.0.0.1:%d", port), config: replicaConfig{
			KubeConfig: cluster.Admin().KubeConfig, Home: r.home, Apps: r.apps, Port: port,
			CrashFile:   r.crashFile,
			Health:      fmt.Sprintf("127.0.0.1:%d", freeport.For(t)),
			ServicePort: int32(r.balancer.listener.Addr().(*net.TCPAddr).Port),
		}})
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.clientCtx, r.stop = ctx, cancel
	go r.balancer.watch(ctx, r.replicas)
	for _, replica := range r.replicas {
		replica.start(t)
	}
	t.Cleanup(func() {
		cancel()
		r.clients.Wait()
		for _, replica := range r.replicas {
			_ = replica.cmd.Process.Kill()
			for range replica.exited {
			}
		}
		if t.Failed() {
			r.log.mu.Lock()
			defer r.log.mu.Unlock()
			text := r.log.text.String()
			t.Log(text[max(0, len(text)-20000):])
		}
		unregister := newManager(t, manager.Options{Namespaces: []string{r.apps}, WebhookNamespace: r.home, ServiceName: rotationService})
		if err := unregister.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	for _, replica := range r.replicas {
		replica.waitReady(t)
	}
	eventuallyCalled(t, r.apps, "marked")
	return r
}

func (r *replica) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r.config)
	if err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), self)
	r.cmd.Env = append(os.Environ(), replicaEnv+"="+string(text))
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := r.cmd
	r.exited = make(chan error, 1)
	exited := r.exited
	go func() {
		exited <- cmd.Wait()
		close(exited)
	}()
}

func (r *replica) waitReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "a replica is ready", func(context.Context) bool {
		status, _ := body(t, "http://"+r.config.Health+"/readyz")
		return status == http.StatusOK
	})
}

// restart ends a replica by a signal, and starts it again.
func (r *replica) restart(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if err := <-r.exited; err != nil && signal == syscall.SIGTERM {
		t.Errorf("a replica ends with %v after SIGTERM", err)
	}
	r.start(t)
	r.waitReady(t)
}

// call calls until the rotation ends, in the long form without a pause.
func (r *rotation) call(what string, once func(context.Context) error) {
	r.clients.Go(func() {
		for r.clientCtx.Err() == nil {
			time.Sleep(testkit.Long(0, 20*time.Millisecond))
			err := once(context.WithoutCancel(r.clientCtx))
			r.calls.Add(1)
			if err == nil {
				continue
			}
			r.mu.Lock()
			r.failures = append(r.failures, fmt.Sprintf("%s %s: %v", time.Now().Format(time.StampMilli), what, err))
			r.mu.Unlock()
		}
	})
}

// load starts the clients: two create Pods, two verify the certificate against
// the live caBundle.
func (r *rotation) load() {
	config := cluster.Config()
	config.QPS = -1
	for range 2 {
		r.call("Pod", func(ctx context.Context) error {
			pod, err := dryRunPod(ctx, r.apps)
			if err == nil && pod.Annotations["marked"] == "" {
				return errors.New("the Pod is not marked")
			}
			return err
		})
		r.call("TLS", func(ctx context.Context) error {
			live, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "admitkit."+r.home, metav1.GetOptions{})
			if err != nil {
				return err
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(live.Webhooks[0].ClientConfig.CABundle)
			dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{RootCAs: roots, ServerName: rotationService + "." + r.home + ".svc", MinVersion: tls.VersionTLS12}}
			conn, err := dialer.DialContext(ctx, "tcp", r.balancer.listener.Addr().String())
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
}

// rotate requests a rotation and returns when the next CA signs. It calls restart
// meanwhile.
func (r *rotation) rotate(restart func()) {
	r.t.Helper()
	secrets := clientset.CoreV1().Secrets(r.home)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"now"}}}`, certs.RotateAnnotation)
	before, err := secrets.Patch(r.t.Context(), "admitkit-setupcertificate", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	restart()
	testkit.Within(r.t, 5*time.Minute, "the next CA signs and the previous one is dropped", func(context.Context) bool {
		secret, err := secrets.Get(r.t.Context(), before.Name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		return !bytes.Equal(secret.Data[certs.CertKey], before.Data[certs.CertKey]) && len(secret.Data[certs.PreviousCertKey])+len(secret.Data[certs.NextCertKey]) == 0
	})
}

func (r *rotation) finish(minCalls, minCAs, minLeaves int) (inFlight, failed int) {
	r.t.Helper()
	testkit.Within(r.t, 10*time.Minute, "there are enough calls", func(context.Context) bool {
		return r.calls.Load() >= int64(minCalls) && r.log.count(certs.LeafIssued) >= minLeaves
	})
	r.stop()
	r.clients.Wait()
	inFlight, other := r.split()
	for _, failure := range other {
		r.t.Error(failure)
	}
	if got := r.log.count(certs.Promoted); got < minCAs {
		r.t.Errorf("there were %d CA rotations, want %d", got, minCAs)
	}
	return inFlight, len(other)
}

// sizes are the numbers of calls and of CA and leaf rotations in a run.
func sizes() (calls, cas, leaves int) {
	return testkit.Long(20000, 500), testkit.Long(5, 1), testkit.Long(20, 6)
}

func TestNoCallFailsWhileCAAndLeavesRotateAndReplicasRestart(t *testing.T) {
	t.Parallel()
	calls, cas, leaves := sizes()
	r := newRotation(t)
	r.load()
	for i := range cas {
		r.rotate(func() { r.replicas[i%len(r.replicas)].restart(t, syscall.SIGTERM) })
	}
	inFlight, failed := r.finish(calls, cas, leaves)
	fmt.Printf("FIGURE rotation.calls=%d calls\n", r.calls.Load())
	fmt.Printf("FIGURE rotation.failed=%d calls\n", inFlight+failed)
	fmt.Printf("FIGURE rotation.ca=%d rotations\n", r.log.count(certs.Promoted))
	if inFlight > 0 {
		t.Errorf("%d calls failed on replicas that died, and none should have", inFlight)
	}
	fmt.Printf("FIGURE rotation.leaf=%d leaves\n", r.log.count(certs.LeafIssued))
}

// Each of the paths is registered for moments only, while replicas stop, and some are killed.
func TestNoCallFailsWhilePathsChangeAndReplicasDie(t *testing.T) {
	testkit.OnlyLong(t) // in the short form, paths change with each restart above
	r := newRotation(t)
	r.load()
	path := func(ctx context.Context) string {
		live, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "admitkit."+r.home, metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return *live.Webhooks[0].ClientConfig.Service.Path
	}
	changes := 0
	for i := range 50 {
		before := path(t.Context())
		overdue(t, r.home)
		switch replica := r.replicas[i%len(r.replicas)]; {
		case i%10 == 9:
			r.balancer.remove(replica.address)
			replica.restart(t, syscall.SIGKILL)
		case i%5 == 4:
			replica.restart(t, syscall.SIGTERM)
		}
		testkit.Within(t, 5*time.Minute, "another path is registered", func(ctx context.Context) bool {
			now := path(ctx)
			return now != "" && now != before
		})
		changes++
	}
	inFlight, failed := r.finish(20000, 0, 0)
	testkit.Figure("door.calls", float64(r.calls.Load()), "calls")
	testkit.Figure("door.path_changes", float64(changes), "changes")
	testkit.Figure("door.in_flight", float64(inFlight), "calls") // on replicas that were killed
	testkit.Figure("door.failed", float64(failed), "calls")
}

func TestAKilledReplicaFailsOnlyWhatItHadInFlight(t *testing.T) {
	t.Parallel()
	testkit.OnlyLong(t) // the short form has the replica below that crashes
	calls, cas, leaves := sizes()
	r := newRotation(t)
	r.load()
	for i := range cas {
		victim := r.replicas[i%len(r.replicas)]
		r.rotate(func() {
			r.balancer.remove(victim.address)
			victim.restart(t, syscall.SIGKILL)
		})
	}
	inFlight, failed := r.finish(calls, cas, leaves)
	fmt.Printf("FIGURE rotation.kill_calls=%d calls\n", r.calls.Load())
	fmt.Printf("FIGURE rotation.kill_failed_in_flight=%d calls\n", inFlight)
	fmt.Printf("FIGURE rotation.kill_failed_other=%d calls\n", failed)
}

func TestNoCallFailsWhenAReplicaCrashesBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	steps := []certs.Step{certs.NextWritten, certs.BundlePublished, certs.NextTrusted, certs.Promoted, certs.PreviousDropped}
	if testing.Short() {
		steps = []certs.Step{certs.Promoted}
	}
	r := newRotation(t)
	r.load()
	crashed := 0
	for _, step := range steps {
		if err := os.WriteFile(r.crashFile, []byte(step), 0o600); err != nil {
			t.Fatal(err)
		}
		r.rotate(func() {
			testkit.Within(t, 5*time.Minute, "a replica crashes at "+string(step), func(context.Context) bool {
				for _, replica := range r.replicas {
					select {
					case err := <-replica.exited:
						var exit *exec.ExitError
						if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
							t.Fatalf("a replica ended with %v", err)
						}
						r.balancer.remove(replica.address)
						crashed++
						replica.start(t)
						replica.waitReady(t)
						return true
					default:
					}
				}
				return false
			})
		})
	}
	inFlight, failed := r.finish(0, len(steps), 0)
	t.Logf("%d calls in flight failed", inFlight)
	fmt.Printf("FIGURE crash.steps=%d steps\n", crashed)
	fmt.Printf("FIGURE crash.failed=%d calls\n", failed)
	if crashed != len(steps) {
		t.Errorf("%d crashes at %d steps", crashed, len(steps))
	}
}
