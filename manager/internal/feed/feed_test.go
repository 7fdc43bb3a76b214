package feed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgocache "k8s.io/client-go/tools/cache"

	"github.com/admitkit/admitkit/extension"
)

// view is a watcher that keeps the Pods as events show them, and checks the order.
type view struct {
	t    *testing.T
	pods map[string]*corev1.Pod
	last map[string]int
}

func newView(t *testing.T) *view {
	return &view{t: t, pods: map[string]*corev1.Pod{}, last: map[string]int{}}
}

func (v *view) Handle(_ context.Context, _ extension.Manager, event watch.Event) {
	pod := event.Object.(*corev1.Pod)
	version, err := strconv.Atoi(pod.ResourceVersion)
	if err != nil {
		v.t.Error(err)
	}
	known := v.pods[pod.Name]
	if (event.Type == watch.Added) != (known == nil) || known != nil && known.UID != pod.UID || version < v.last[pod.Name] || event.Type == watch.Modified && version == v.last[pod.Name] {
		v.t.Errorf("%s of Pod %s (%s) at %d comes after %d", event.Type, pod.Name, pod.UID, version, v.last[pod.Name])
	}
	v.last[pod.Name] = version
	v.pods[pod.Name] = pod
	if event.Type == watch.Deleted {
		delete(v.pods, pod.Name)
	}
}

// world holds the Pods of an informer and passes their changes to a feed.
type world struct {
	store   clientgocache.Store
	feed    *Feed
	version int
}

// quiet is a host without a log.
type quiet struct{ extension.Manager }

func (quiet) GetLogger() *zap.SugaredLogger { return zap.NewNop().Sugar() }

func newWorld(watcher extension.Watcher, limit int, startRV string) *world {
	w := &world{store: clientgocache.NewStore(clientgocache.MetaNamespaceKeyFunc)}
	w.feed = New(watcher, quiet{}, limit, startRV)
	return w
}

// set creates or changes a Pod.
func (w *world) set(name string) {
	w.version++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(w.version), UID: types.UID(fmt.Sprint("uid-", w.version))}}
	before, exists, _ := w.store.GetByKey(name)
	if exists {
		pod.UID = before.(*corev1.Pod).UID
	}
	_ = w.store.Add(pod)
	if exists {
		w.feed.OnUpdate(before, pod)
	} else {
		w.feed.OnAdd(pod, false)
	}
}

// remove deletes a Pod. An informer that missed the deletion has only the Pod's last
// known state.
func (w *world) remove(name string, missed bool) {
	obj, exists, _ := w.store.GetByKey(name)
	if !exists {
		return
	}
	w.version++
	_ = w.store.Delete(obj)
	if missed {
		w.feed.OnDelete(clientgocache.DeletedFinalStateUnknown{Key: name, Obj: obj})
		return
	}
	last := obj.(*corev1.Pod).DeepCopy()
	last.ResourceVersion = strconv.Itoa(w.version)
	w.feed.OnDelete(last)
}

// replace deletes and creates a Pod. The informer sees one change, in a list after a
// lost connection.
func (w *world) replace(name string) {
	before, exists, _ := w.store.GetByKey(name)
	if !exists {
		return
	}
	w.version += 2
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(w.version), UID: types.UID(fmt.Sprint("uid-", w.version))}}
	_ = w.store.Update(pod)
	w.feed.OnUpdate(before, pod)
}

// repeat passes on a Pod that the informer lists again.
func (w *world) repeat(name string) {
	if pod, exists, _ := w.store.GetByKey(name); exists {
		w.feed.OnUpdate(pod, pod.(*corev1.Pod).DeepCopy())
	}
}

// step does one step of run and reports whether there was anything to do.
func (w *world) step(ctx context.Context) bool {
	changes := w.feed.next()
	for _, c := range changes {
		w.feed.tell(ctx, c)
	}
	return len(changes) > 0
}

func TestAWatcherKnowsEveryPodInTheEndHoweverSlowItIs(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		v := newView(t)
		w := newWorld(v, 1+random.IntN(8), "")
		for range 300 {
			name := fmt.Sprint("pod-", random.IntN(6))
			switch random.IntN(14) {
			case 0, 1, 2, 3:
				w.set(name)
			case 4, 5:
				w.remove(name, false)
			case 6:
				w.remove(name, true)
			case 7:
				w.replace(name)
			case 8:
				w.repeat(name)
			default: // the watcher has time
				w.step(t.Context())
			}
		}
		for w.step(t.Context()) {
		}
		if len(v.pods) != len(w.store.List()) {
			t.Errorf("seed %d: the watcher knows %d Pods of %d", seed, len(v.pods), len(w.store.List()))
		}
		for _, obj := range w.store.List() {
			if pod := obj.(*corev1.Pod); v.pods[pod.Name] == nil || v.pods[pod.Name].ResourceVersion != pod.ResourceVersion {
				t.Errorf("seed %d: the watcher knows another state of Pod %s", seed, pod.Name)
			}
		}
		if t.Failed() {
			return
		}
	}
}

func TestAWatcherIsNotToldOfPodsBeforeItsStartUntilTheyChange(t *testing.T) {
	v := newView(t)
	w := newWorld(v, 1, "2")
	w.set("old")
	w.set("older")
	w.set("new")
	for w.step(t.Context()) {
	}
	if len(v.pods) != 1 || v.pods["new"] == nil {
		t.Errorf("the watcher knows %v", v.pods)
	}
	changed := &corev1.Pod{}
	w.feed.watcher = watcherFunc(func(event watch.Event) { changed = event.Object.(*corev1.Pod) })
	w.set("old")
	for w.step(t.Context()) {
	}
	if changed.Name != "old" {
		t.Errorf("the watcher was told of %v", changed)
	}
}

type watcherFunc func(watch.Event)

func (f watcherFunc) Handle(_ context.Context, _ extension.Manager, event watch.Event) { f(event) }

func TestAPanicOfAWatcherEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var told []string
		w := newWorld(watcherFunc(func(event watch.Event) {
			told = append(told, string(event.Type))
			panic("boom")
		}), 10, "")
		w.set("a")
		go w.feed.Run(ctx, func() bool { return true })
		synctest.Wait()
		w.set("a")
		synctest.Wait()
		w.remove("a", false)
		synctest.Wait()
		if fmt.Sprint(told) != "[ADDED MODIFIED DELETED]" {
			t.Errorf("the watcher was told %v", told)
		}
		cancel()
		synctest.Wait()
	})
}

func TestAWatcherThatDoesNotEndHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		stuck := newWorld(watcherFunc(func(watch.Event) { <-hang }), 2, "")
		told := 0
		other := newWorld(watcherFunc(func(watch.Event) { told++ }), 2, "")
		go stuck.feed.Run(ctx, func() bool { return true })
		go other.feed.Run(ctx, func() bool { return true })
		synctest.Wait()
		for range 10 {
			stuck.set("a") // does not block
			other.set("a")
			synctest.Wait()
		}
		if told != 10 || len(stuck.feed.queue) > 2 {
			t.Errorf("the other watcher was called %d times, %d events wait for the one that is stuck", told, len(stuck.feed.queue))
		}
		cancel()
		close(hang)
		synctest.Wait()
	})
}
