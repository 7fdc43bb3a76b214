package manager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// ledger is a Watcher that keeps the Pods of its events, and counts impossible events.
type ledger struct {
	slow time.Duration // for each event

	mu         sync.Mutex
	events     int
	pods       map[string]*corev1.Pod
	last       map[string]uint64
	outOfOrder []string
}

func newLedger(slow time.Duration) *ledger {
	return &ledger{slow: slow, pods: map[string]*corev1.Pod{}, last: map[string]uint64{}}
}

func (l *ledger) Handle(_ context.Context, _ extension.Manager, event watch.Event) {
	if l.slow > 0 {
		time.Sleep(l.slow) // this is what the watcher is about
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	pod := event.Object.(*corev1.Pod)
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	known := l.pods[pod.Name]
	if err != nil || version < l.last[pod.Name] || (event.Type == watch.Added) != (known == nil) || known != nil && known.UID != pod.UID {
		l.outOfOrder = append(l.outOfOrder, fmt.Sprintf("%s of %s (%s) at %s after %d", event.Type, pod.Name, pod.UID, pod.ResourceVersion, l.last[pod.Name]))
	}
	l.events++
	l.last[pod.Name] = version
	l.pods[pod.Name] = pod
	if event.Type == watch.Deleted {
		delete(l.pods, pod.Name)
	}
}

// lost returns the Pods that the watcher and the API server know differently.
func (l *ledger) lost(list []corev1.Pod) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost []string
	there := map[string]bool{}
	for _, pod := range list {
		there[pod.Name] = true
		if known := l.pods[pod.Name]; known == nil || known.ResourceVersion != pod.ResourceVersion || known.UID != pod.UID {
			lost = append(lost, pod.Name)
		}
	}
	for name := range l.pods {
		if !there[name] {
			lost = append(lost, name)
		}
	}
	return lost
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// panicker is a Watcher that always panics.
type panicker struct{ events atomic.Int64 }

func (p *panicker) Handle(context.Context, extension.Manager, watch.Event) {
	p.events.Add(1)
	panic("boom")
}

// network is a connection that a test can cut. It counts the responses that a resource
// version has expired.
type network struct {
	next    http.RoundTripper
	cut     *atomic.Bool
	expired *atomic.Int64
}

func (n network) WrappedRoundTripper() http.RoundTripper { return n.next }

func (n network) RoundTrip(req *http.Request) (*http.Response, error) {
	if n.cut.Load() {
		return nil, syscall.ECONNREFUSED
	}
	response, err := n.next.RoundTrip(req)
	if err == nil {
		response.Body = &reader{response.Body, n}
	}
	return response, err
}

type reader struct {
	io.ReadCloser
	network
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	if bytes.Contains(p[:n], []byte("too old resource version")) {
		r.expired.Add(1)
	}
	return n, err
}

// turmoil creates, changes and deletes Pods at random.
type turmoil struct {
	pods  corev1client.PodInterface
	names int
	done  atomic.Int64 // operations that succeeded
}

// all works on every Pod, by several workers with Pods of their own.
func (u *turmoil) all(work func(worker int, name string) error) error {
	const workers = 16
	errs := make([]error, workers)
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for i := worker; i < u.names && errs[worker] == nil; i += workers {
				errs[worker] = work(worker, fmt.Sprint("pod-", i))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// random creates, changes or deletes a Pod. The API server may be down meanwhile.
func (u *turmoil) random(ctx context.Context, name string) {
	var err error
	switch rand.IntN(10) {
	case 0, 1:
		now := int64(0)
		err = u.pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	case 2, 3:
		_, err = u.pods.Create(ctx, newPod(name), metav1.CreateOptions{})
	default:
		patch := fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, rand.Int32())
		_, err = u.pods.Patch(ctx, name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	}
	if err == nil {
		u.done.Add(1)
	} else if !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond) // of an outage there is no end to wait for
	}
}

// run goes on until the context ends.
func (u *turmoil) run(ctx context.Context) *sync.WaitGroup {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				u.random(ctx, fmt.Sprint("pod-", rand.IntN(u.names)))
			}
		})
	}
	return &group
}

func TestWatchersLoseNothingWhileTheAPIServerRestartsAndVersionsExpire(t *testing.T) {
	names, period, slow := 5000, time.Minute, 10*time.Millisecond
	if testing.Short() {
		names, period, slow = 300, 6*time.Second, 5*time.Millisecond
	}
	namespace := newNamespace(t)
	u := &turmoil{pods: clientset.CoreV1().Pods(namespace), names: names}
	if err := u.all(func(_ int, name string) error {
		_, err := u.pods.Create(t.Context(), newPod(name), metav1.CreateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}

	var cut atomic.Bool
	var expired atomic.Int64
	watched := cluster.Config()
	watched.Wrap(func(next http.RoundTripper) http.RoundTripper { return network{next, &cut, &expired} })
	quick, slowOne, panics := newLedger(0), newLedger(slow), &panicker{}
	r := newManager(t, manager.Options{Namespace: namespace, RESTConfig: watched, Watching: manager.WatchingOptions{QueueLength: 50}}, panics, slowOne, quick)
	done := make(chan error, 1)
	go func() { done <- r.Watch(t.Context()) }()
	testkit.Within(t, time.Minute, "the watcher got the Pods that exist", func(context.Context) bool { return quick.count() >= names })

	// The restarts of the API server do not count for the period.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	group := u.run(ctx)
	time.Sleep(period / 3)
	if err := cluster.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(period / 3)
	// While the watch is cut off, its resource version expires.
	cut.Store(true)
	time.Sleep(period / 3)
	if err := errors.Join(cluster.CompactEtcd(t.Context()), cluster.RestartAPIServer(t.Context())); err != nil {
		t.Fatal(err)
	}
	cut.Store(false)
	stop()
	group.Wait()

	// The API server may still carry out a write whose request ended with the turmoil, so
	// what it has is listed again each time.
	var list *corev1.PodList
	for _, l := range []*ledger{quick, slowOne} {
		testkit.Within(t, 2*time.Minute, "the watcher knows what the API server has", func(ctx context.Context) bool {
			var err error
			list, err = u.pods.List(ctx, metav1.ListOptions{})
			return err == nil && len(l.lost(list.Items)) == 0
		})
	}
	r.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if expired.Load() == 0 {
		t.Error("no resource version expired: the test shows nothing")
	}
	if events := panics.events.Load(); events < int64(names) {
		t.Errorf("the watcher that panics was handed %d events", events)
	}
	if missed := quick.events - slowOne.events; missed <= 0 {
		t.Errorf("the slow watcher had time for everything, %d events: its queue was never full", slowOne.events)
	}
	outOfOrder := slices.Concat(quick.outOfOrder, slowOne.outOfOrder)
	if len(outOfOrder) > 0 {
		t.Errorf("%d events are out of order, the first is %s", len(outOfOrder), outOfOrder[0])
	}
	fmt.Printf("FIGURE watch.operations=%d count\n", u.done.Load())
	fmt.Printf("FIGURE watch.events=%d count\n", quick.events)
	fmt.Printf("FIGURE watch.expired=%d count\n", expired.Load())
	fmt.Printf("FIGURE watch.lost=%d count\n", len(quick.lost(list.Items))+len(slowOne.lost(list.Items)))
	fmt.Printf("FIGURE watch.out_of_order=%d count\n", len(outOfOrder))
	fmt.Printf("FIGURE watch.pods=%d count\n", len(list.Items))
}

// everywhere is a recorder that runs in every replica.
type everywhere struct{ *recorder }

func (everywhere) NeedLeaderElection() bool { return false }

func TestOneReplicaWatchesUnlessTheWatcherWantsAll(t *testing.T) {
	namespace := newNamespace(t)
	createPod(t, namespace, newPod("existing"))
	options := manager.Options{Namespace: namespace, Watching: manager.WatchingOptions{LeaderElection: true}}
	elected := [2]*recorder{newRecorder(), newRecorder()}
	all := [2]everywhere{{newRecorder()}, {newRecorder()}}
	first := start(t, options, elected[0], all[0])
	elected[0].expect(t, "ADDED existing")
	start(t, options, elected[1], all[1])
	for _, w := range all {
		w.expect(t, "ADDED existing")
	}
	createPod(t, namespace, newPod("new"))
	elected[0].expect(t, "ADDED new")
	for _, w := range all {
		w.expect(t, "ADDED new")
	}
	if n := len(elected[1].events); n > 0 {
		t.Errorf("the replica that was not elected got %d events", n)
	}
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	elected[1].expect(t, "ADDED existing")
	elected[1].expect(t, "ADDED new")
}

func TestWatchIsElectedToo(t *testing.T) {
	namespace := newNamespace(t)
	createPod(t, namespace, newPod("existing"))
	watch := func() (w *recorder, r *running, done chan error) {
		w, done = newRecorder(), make(chan error, 1)
		r = newManager(t, manager.Options{Namespace: namespace, Watching: manager.WatchingOptions{LeaderElection: true}}, w)
		go func() { done <- r.Watch(t.Context()) }()
		return w, r, done
	}
	first, leader, firstDone := watch()
	first.expect(t, "ADDED existing")
	second, other, secondDone := watch()
	createPod(t, namespace, newPod("new"))
	first.expect(t, "ADDED new")
	if n := len(second.events); n > 0 {
		t.Errorf("the replica that was not elected got %d events", n)
	}
	leader.Stop()
	second.expect(t, "ADDED existing")
	second.expect(t, "ADDED new")
	other.Stop()
	for _, done := range []chan error{firstDone, secondDone} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
