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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// ledger is a WatcherOf that keeps the objects of its events, and counts impossible events.
type ledger[T client.Object] struct {
	// held and slow make it slow: no event is over before held is closed, and each takes as long.
	held <-chan struct{}
	slow time.Duration

	mu         sync.Mutex
	events     int
	known      map[string]client.Object
	last       map[string]uint64
	outOfOrder []string
}

func newLedger[T client.Object]() *ledger[T] {
	return &ledger[T]{known: map[string]client.Object{}, last: map[string]uint64{}}
}

func (l *ledger[T]) Watch(_ context.Context, _ extension.Manager, event watch.EventType, object T) {
	if l.held != nil {
		<-l.held
		time.Sleep(l.slow)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	name := object.GetName()
	version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	known := l.known[name]
	if err != nil || version < l.last[name] || (event == watch.Added) != (known == nil) || known != nil && known.GetUID() != object.GetUID() {
		l.outOfOrder = append(l.outOfOrder, fmt.Sprintf("%s of %s (%s) at %s after %d", event, name, object.GetUID(), object.GetResourceVersion(), l.last[name]))
	}
	l.events++
	l.last[name], l.known[name] = version, object
	if event == watch.Deleted {
		delete(l.known, name)
	}
}

// lost returns the objects that the watcher and the API server know differently.
func (l *ledger[T]) lost(list map[string]client.Object) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost []string
	for name, object := range list {
		if known := l.known[name]; known == nil || known.GetResourceVersion() != object.GetResourceVersion() || known.GetUID() != object.GetUID() {
			lost = append(lost, name)
		}
	}
	for name := range l.known {
		if list[name] == nil {
			lost = append(lost, name)
		}
	}
	return lost
}

func (l *ledger[T]) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// podLedger is a Watcher.
type podLedger struct{ *ledger[*corev1.Pod] }

func (l podLedger) Handle(ctx context.Context, mgr extension.Manager, event watch.Event) {
	l.Watch(ctx, mgr, event.Type, event.Object.(*corev1.Pod))
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

// turmoil creates, changes and deletes Pods and ConfigMaps of a namespace at random.
type turmoil struct {
	client.WithWatch
	names int
	done  atomic.Int64 // operations that succeeded
}

// of returns the Pod, or the ConfigMap, of a number.
func (u *turmoil) of(n int, pods bool) client.Object {
	if pods {
		pod := newPod(fmt.Sprint("pod-", n))
		pod.Namespace = metav1.NamespaceDefault
		return pod
	}
	object := configMap(fmt.Sprint("map-", n), "a")
	object.Namespace = metav1.NamespaceDefault
	return object
}

// random creates, changes or deletes one, or takes it out of the selector. The API server may be down meanwhile.
func (u *turmoil) random(ctx context.Context) {
	object := u.of(rand.IntN(u.names), rand.IntN(2) == 0)
	var err error
	switch team := "a"; rand.IntN(10) {
	case 0, 1:
		err = u.Delete(ctx, object)
	case 2, 3:
		err = u.Create(ctx, object)
	case 4:
		team = "b"
		fallthrough
	default:
		patch := fmt.Sprintf(`{"metadata":{"labels":{"team":%q,"n":"%d"}}}`, team, rand.Int32())
		err = u.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)))
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
				u.random(ctx)
			}
		})
	}
	return &group
}

// goesOn returns after so many more operations.
func (u *turmoil) goesOn(t *testing.T, operations int) {
	t.Helper()
	before := u.done.Load()
	testkit.Within(t, 10*time.Minute, "the turmoil goes on", func(context.Context) bool { return u.done.Load() >= before+int64(operations) })
}

// list returns the Pods, or the ConfigMaps of the team.
func (u *turmoil) list(ctx context.Context, pods bool) (map[string]client.Object, error) {
	var list client.ObjectList = &corev1.PodList{}
	options := []client.ListOption{client.InNamespace(metav1.NamespaceDefault)}
	if !pods {
		list, options = &corev1.ConfigMapList{}, append(options, client.MatchingLabels{"team": "a"})
	}
	if err := u.List(ctx, list, options...); err != nil {
		return nil, err
	}
	found := map[string]client.Object{}
	err := meta.EachListItem(list, func(item runtime.Object) error {
		found[item.(client.Object).GetName()] = item.(client.Object)
		return nil
	})
	return found, err
}

// ledgers are those of the same objects, one of them slow.
type ledgers[T client.Object] struct{ quick, slow *ledger[T] }

func newLedgers[T client.Object](held <-chan struct{}) ledgers[T] {
	l := ledgers[T]{newLedger[T](), newLedger[T]()}
	l.slow.held, l.slow.slow = held, 10*time.Millisecond
	return l
}

// know waits until both know what the API server has. That may still carry out a write whose request ended with the
// turmoil, so what it has is listed again each time.
func (l ledgers[T]) know(t *testing.T, list func(context.Context) (map[string]client.Object, error)) (objects, lost int) {
	t.Helper()
	for _, one := range []*ledger[T]{l.quick, l.slow} {
		testkit.Succeeds(t, 2*time.Minute, "the watcher knows what the API server has", func(ctx context.Context) error {
			found, err := list(ctx)
			if err != nil {
				return err
			}
			if differ := one.lost(found); len(differ) > 0 {
				lost = len(differ)
				return fmt.Errorf("of %d objects it knows %d differently, the first is %s", len(found), lost, differ[0])
			}
			objects, lost = len(found), 0
			return nil
		})
	}
	return objects, lost
}

// check looks at the events, when there are no more. It returns how many were out of order.
func (l ledgers[T]) check(t *testing.T) int {
	t.Helper()
	if l.quick.events <= l.slow.events {
		t.Errorf("the slow watcher had time for everything, %d events: its queue was never full", l.slow.events)
	}
	outOfOrder := slices.Concat(l.quick.outOfOrder, l.slow.outOfOrder)
	if len(outOfOrder) > 0 {
		t.Errorf("%d events are out of order, the first is %s", len(outOfOrder), outOfOrder[0])
	}
	return len(outOfOrder)
}

func TestWatchersLoseNothingWhileTheAPIServerRestartsAndVersionsExpire(t *testing.T) {
	t.Parallel()
	cluster := controlplane.Run(t, controlplane.Options{})
	u := &turmoil{WithWatch: testkit.Client(t, cluster.Admin(), nil), names: testkit.Long(3000, 40)}
	operations := testkit.Long(10_000, 100)
	for n := range 2 * u.names {
		testkit.Create(t, u, u.of(n/2, n%2 == 0))
	}

	var cut atomic.Bool
	var expired atomic.Int64
	connection := cluster.Config()
	connection.Wrap(func(next http.RoundTripper) http.RoundTripper { return network{next, &cut, &expired} })
	held := make(chan struct{}) // until the queues have been full
	pods, maps, panics := newLedgers[*corev1.Pod](held), newLedgers[*corev1.ConfigMap](held), &panicker{}
	scope := extension.WatchScope{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}}
	r := newManager(t, manager.Options{Namespaces: []string{metav1.NamespaceDefault}, RESTConfig: connection, Watching: manager.WatchingOptions{QueueLength: testkit.Long(50, 5)}},
		panics, podLedger{pods.slow}, podLedger{pods.quick}, extension.Watching(maps.slow, scope), extension.Watching(maps.quick, scope))
	done := make(chan error, 1)
	go func() { done <- r.Watch(t.Context()) }()
	testkit.Eventually(t, "the watchers got what exists", func(context.Context) bool { return min(pods.quick.count(), maps.quick.count()) >= u.names })

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	group := u.run(ctx)
	u.goesOn(t, operations)
	close(held)
	if !testing.Short() {
		if err := cluster.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		u.goesOn(t, operations)
	}
	// While the watch is cut off, its resource version expires.
	cut.Store(true)
	u.goesOn(t, operations)
	if err := errors.Join(cluster.CompactEtcd(t.Context()), cluster.RestartAPIServer(t.Context())); err != nil {
		t.Fatal(err)
	}
	cut.Store(false)
	stop()
	group.Wait()

	podsLeft, podsLost := pods.know(t, func(ctx context.Context) (map[string]client.Object, error) { return u.list(ctx, true) })
	_, mapsLost := maps.know(t, func(ctx context.Context) (map[string]client.Object, error) { return u.list(ctx, false) })
	r.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if expired.Load() == 0 {
		t.Error("no resource version expired: the test shows nothing")
	}
	if events := panics.events.Load(); events < int64(u.names) {
		t.Errorf("the watcher that panics was handed %d events", events)
	}
	testkit.Figure("watch.operations", float64(u.done.Load()), "count")
	testkit.Figure("watch.events", float64(pods.quick.events), "count")
	testkit.Figure("watch.expired", float64(expired.Load()), "count")
	testkit.Figure("watch.lost", float64(podsLost+mapsLost), "count")
	testkit.Figure("watch.out_of_order", float64(pods.check(t)+maps.check(t)), "count")
	testkit.Figure("watch.pods", float64(podsLeft), "count")
}

// everywhere is a recorder that runs in every replica.
type everywhere struct{ *recorder }

func (everywhere) NeedLeaderElection() bool { return false }

func TestOneReplicaWatchesUnlessTheWatcherWantsAll(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, newPod("existing"))
	options := manager.Options{Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}}
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
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, newPod("existing"))
	watch := func() (w *recorder, r *running, done chan error) {
		w, done = newRecorder(), make(chan error, 1)
		r = newManager(t, manager.Options{Namespaces: []string{namespace}, Watching: manager.WatchingOptions{LeaderElection: true}}, w)
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
