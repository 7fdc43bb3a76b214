package manager_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests of this package share one real API server. Each has its own namespaces.
var (
	cluster   *controlplane.ControlPlane
	clientset *kubernetes.Clientset
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		replicaMain()
		return
	}
	os.Exit(func() int {
		var err error
		if cluster, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		config := cluster.Config()
		config.QPS = -1
		clientset = kubernetes.NewForConfigOrDie(config)
		return m.Run()
	}())
}

// running is a manager between start and stop.
type running struct {
	*manager.Manager
	address string
	logs    *observer.ObservedLogs
	done    chan error
	// outage means that the test restarts the API server, after which clients of the
	// control plane itself have new connections.
	outage bool
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
	if watch := onRequest; watch != nil {
		options.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return requestWatcher{next, watch} })
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
	address := net.JoinHostPort(options.Host, strconv.Itoa(int(options.Port)))
	return &running{Manager: mgr, address: address, logs: logs, done: make(chan error, 1)}
}

// onRequest, if set, is called for every request of new managers.
var onRequest func(*http.Request)

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
	before := goleak.IgnoreCurrent()
	go func() { r.done <- r.Start(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("the manager stopped with an error: %v", err)
		}
		if err := r.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		clientset.RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
		if own, err := r.GetKubeConnection(); err == nil { // as another user
			if client, err := rest.HTTPClientFor(own); err == nil {
				utilnet.CloseIdleConnectionsFor(client.Transport)
			}
		}
		// Of a watch of metadata, which has an event that nobody waits for any more.
		filter := goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")
		if err := goleak.Find(before, filter); err != nil && !r.outage {
			t.Errorf("goroutines are left after Stop: %v", err)
		}
	})
}

var stopping sync.Mutex

// stop stops the manager and waits; a second call does nothing.
func (r *running) stop() error {
	stopping.Lock()
	defer stopping.Unlock()
	if r.done == nil {
		return nil
	}
	r.Stop()
	select {
	case err := <-r.done:
		r.done = nil
		return err
	case <-time.After(time.Minute):
		return errors.New("not stopped after a minute")
	}
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
