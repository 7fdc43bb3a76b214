package manager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests of this package share one real API server, and run in parallel: each has namespaces of its own. Those that
// restart the API server have another (controlplane.Run), and those that could disturb the others come before them, alone.
var (
	cluster   *controlplane.ControlPlane
	clientset *kubernetes.Clientset
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		replicaMain()
		return
	}
	os.Exit(testkit.Main(m, controlplane.Options{}, func(c *controlplane.ControlPlane) error {
		cluster, clientset = c, clientsetOf(c)
		return nil
	}))
}

// clientsetOf returns clients of an administrator, without a rate limit.
func clientsetOf(c *controlplane.ControlPlane) *kubernetes.Clientset {
	config := c.Config()
	config.QPS = -1
	return kubernetes.NewForConfigOrDie(config)
}

// running is a manager between start and stop.
type running struct {
	*manager.Manager
	address string
	logs    *observer.ObservedLogs
	done    chan error
	// stop stops the manager and waits; a second call does nothing.
	stop func() error
}

// start runs a manager with the extensions until the test ends, and returns when it
// is ready. It fills in the options that the test does not set: a free port of the
// loopback address, a URL in place of a Service, no drain.
func start(t *testing.T, options manager.Options, extensions ...any) *running {
	t.Helper()
	r := newManager(t, options, extensions...)
	r.run(t)
	r.await(t)
	return r
}

// await returns when the manager is ready.
func (r *running) await(t *testing.T) {
	t.Helper()
	select {
	case <-r.Ready():
	case err := <-r.done:
		r.done <- err
		t.Fatalf("the manager stopped at start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the manager is not ready after a minute")
	}
}

func newManager(t *testing.T, options manager.Options, extensions ...any) *running {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	options.Logger = zap.New(core).Sugar()
	if options.RESTConfig == nil && options.KubeConfig == "" {
		options.RESTConfig = cluster.Config()
	}
	if options.OperatorFingerprint == "" {
		options.OperatorFingerprint = "admitkit"
	}
	if options.Port == 0 {
		options.Port = freeport.For(t)
	}
	if options.Host == "" {
		options.Host = "127.0.0.1"
	}
	if options.Serving.DrainPeriod == nil {
		options.Serving.DrainPeriod = new(time.Duration)
	}
	mgr, err := manager.New(options)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range extensions {
		if err := mgr.AddExtension(e); err != nil {
			t.Fatal(err)
		}
	}
	r := &running{Manager: mgr, address: net.JoinHostPort(options.Host, strconv.Itoa(int(options.Port))), logs: logs, done: make(chan error, 1)}
	r.stop = sync.OnceValue(func() error {
		r.Stop()
		select {
		case err := <-r.done:
			return err
		case <-time.After(time.Minute):
			return errors.New("not stopped after a minute")
		}
	})
	return r
}

// watched returns a connection to the API server that calls watch for every request.
func watched(watch func(*http.Request)) *rest.Config {
	config := cluster.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return requestWatcher{next, watch} })
	return config
}

type requestWatcher struct {
	next  http.RoundTripper
	watch func(*http.Request)
}

func (w requestWatcher) WrappedRoundTripper() http.RoundTripper { return w.next }

func (w requestWatcher) RoundTrip(r *http.Request) (*http.Response, error) {
	w.watch(r)
	return w.next.RoundTrip(r)
}

// run starts the manager. At the end of the test it stops the manager, removes what it
// registered, and fails the test on an error or a goroutine that is left behind.
func (r *running) run(t *testing.T) {
	t.Helper()
	label := fmt.Sprintf("%p", r)
	go pprof.Do(context.WithoutCancel(t.Context()), pprof.Labels("manager", label), func(ctx context.Context) { r.done <- r.Start(ctx) })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("the manager stopped with an error: %v", err)
		}
		ctx := context.WithoutCancel(t.Context())
		if err := r.UnregisterExtensions(ctx); err != nil {
			t.Error(err)
		}
		if err := testkit.Poll(ctx, time.Minute, "every goroutine of the manager ends", func(context.Context) error { return left(label) }); err != nil {
			t.Error(err)
		}
	})
}

// shared are goroutines of connections, which managers of one user share, and of a watch of
// metadata, which has an event that nobody waits for any more.
var shared = regexp.MustCompile(`(?i)clientConnReadLoop\)\.run|persistConn\)\.(read|write)Loop|watch\.\(\*filteredWatch\)\.loop`)

// left reports the goroutines with a label: a goroutine has those of the one that began it.
func left(manager string) error {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return err
	}
	var errs []error
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, fmt.Sprintf("%q:%q", "manager", manager)) && !shared.MatchString(stack) {
			errs = append(errs, errors.New(stack))
		}
	}
	return errors.Join(errs...)
}

// newNamespace makes a namespace for one test.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace, err := clientset.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
}

// createPod creates a Pod, without a dry run.
func createPod(t *testing.T, namespace string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := clientset.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// dryRunPod creates a Pod by a dry run.
func dryRunPod(ctx context.Context, namespace string) (*corev1.Pod, error) {
	return dryRunPodAt(ctx, clientset, namespace)
}

func dryRunPodAt(ctx context.Context, clientset *kubernetes.Clientset, namespace string) (*corev1.Pod, error) {
	return clientset.CoreV1().Pods(namespace).Create(ctx, newPod("probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// eventuallyCalled waits until the API server calls the webhook that marks
// Pods with the annotation.
func eventuallyCalled(t *testing.T, namespace, annotation string) {
	t.Helper()
	testkit.Eventually(t, "the API server calls the webhook that sets "+annotation, func(context.Context) bool {
		pod, err := dryRunPod(t.Context(), namespace)
		return err == nil && pod.Annotations[annotation] != ""
	})
}
