package feed

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	clientgocache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// Feed passes events to one watcher, one at a time, and remembers them.
//
// Changes of objects wait in a queue of limited length. A change that finds the queue
// full is dropped, and the feed is behind: when the queue is empty, it compares the
// objects that the watcher knows with those that exist, and passes on the difference.
// A slow watcher thus costs a bounded amount of memory, delays no other, and misses
// only states that were over before it could look. A feed begins behind, which is how
// those that already exist come first.
//
// The feed learns from the changes themselves which objects exist. The informer's store
// would be ahead of the changes, and an event from there could be followed by an
// earlier one.
type Feed struct {
	watcher extension.Watcher
	name    string
	host    extension.Manager
	limit   int
	startRV string

	mu      sync.Mutex
	present map[types.NamespacedName]client.Object
	queue   []change
	behind  bool
	// counts is false until the first list is complete. Events that are dropped
	// before are no loss.
	counts bool
	wake   chan struct{}

	// told is the state of each object that the watcher knows. It belongs to run.
	told map[types.NamespacedName]client.Object
}

// change is an object in its present state, or in its last one if it was deleted.
type change struct {
	object  client.Object
	deleted bool
}

var _ clientgocache.ResourceEventHandler = (*Feed)(nil)

// New returns a Feed for a watcher, whose host is as. Its queue has at most limit changes, and
// objects that have not changed since startRV are not told.
func New(watcher extension.Watcher, as extension.Manager, limit int, startRV string) *Feed {
	name := host.WatcherName(watcher)
	// Alerts watch these from zero on.
	watcherPanics.WithLabelValues(name)
	watcherDropped.WithLabelValues(name)
	return &Feed{
		watcher: watcher, name: name, host: as, limit: limit, startRV: startRV,
		behind: true, wake: make(chan struct{}, 1), present: map[types.NamespacedName]client.Object{}, told: map[types.NamespacedName]client.Object{},
	}
}

// OnAdd takes a new object from the informer. Like the others, it does not block.
func (f *Feed) OnAdd(obj any, _ bool) { f.push(obj, false) }

// OnUpdate takes a changed object.
func (f *Feed) OnUpdate(_, obj any) { f.push(obj, false) }

// OnDelete takes a deleted object.
func (f *Feed) OnDelete(obj any) {
	if missed, ok := obj.(clientgocache.DeletedFinalStateUnknown); ok {
		obj = missed.Obj
	}
	f.push(obj, true)
}

func (f *Feed) push(obj any, deleted bool) {
	object, ok := obj.(client.Object)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if deleted {
		delete(f.present, keyOf(object))
	} else {
		f.present[keyOf(object)] = object
	}
	if f.behind || len(f.queue) >= f.limit {
		f.behind = true
		if f.counts {
			watcherDropped.WithLabelValues(f.name).Inc()
		}
	} else {
		f.queue = append(f.queue, change{object, deleted})
		watcherQueue.WithLabelValues(f.name).Set(float64(len(f.queue)))
	}
	select {
	case f.wake <- struct{}{}:
	default: // one entry is enough
	}
}

// Run passes events on until ctx ends.
func (f *Feed) Run(ctx context.Context, synced func() bool) {
	defer watcherQueue.DeletePartialMatch(prometheus.Labels{"watcher": f.name})
	if !clientgocache.WaitForCacheSync(ctx.Done(), synced) {
		return
	}
	f.mu.Lock()
	f.counts = true
	f.mu.Unlock()
	for ctx.Err() == nil {
		changes := f.next()
		for _, c := range changes {
			if ctx.Err() == nil {
				f.tell(ctx, c)
			}
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-f.wake:
		}
	}
}

// next takes the next change from the queue. If the queue is empty and the feed is
// behind, it returns everything that the watcher missed.
func (f *Feed) next() []change {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) > 0 {
		next := f.queue[:1]
		f.queue = f.queue[1:]
		watcherQueue.WithLabelValues(f.name).Set(float64(len(f.queue)))
		return next
	}
	f.queue = nil // frees the objects that were passed on
	if !f.behind {
		return nil
	}
	f.behind = false
	watcherRelists.WithLabelValues(f.name).Inc()
	return f.missed()
}

// missed returns the changes from the objects that the watcher knows to those that
// exist: deletions first, then the others in the order in which they changed.
func (f *Feed) missed() []change {
	var changes []change
	for key, known := range f.told {
		if f.present[key] == nil {
			changes = append(changes, change{known, true})
		}
	}
	deletions := len(changes)
	for key, object := range f.present {
		if f.told[key] != object {
			changes = append(changes, change{object, false})
		}
	}
	slices.SortFunc(changes[deletions:], func(a, b change) int { return order(a.object.GetResourceVersion(), b.object.GetResourceVersion()) })
	return changes
}

// tell passes on the events that lead from the state of an object that the watcher knows
// to a change: none if the watcher knows it already.
func (f *Feed) tell(ctx context.Context, c change) {
	key := keyOf(c.object)
	known := f.told[key]
	same := known != nil && known.GetUID() == c.object.GetUID()
	switch {
	case c.deleted && known == nil, same && !c.deleted && known.GetResourceVersion() == c.object.GetResourceVersion():
		// An informer that lists again repeats what has not changed.
	case c.deleted:
		delete(f.told, key)
		f.handle(ctx, watch.Deleted, c.object)
	case same:
		f.told[key] = c.object
		f.handle(ctx, watch.Modified, c.object)
	case known != nil: // it was deleted and created again in between
		delete(f.told, key)
		f.handle(ctx, watch.Deleted, known)
		f.tell(ctx, c)
	default:
		f.told[key] = c.object
		if f.startRV == "" || order(c.object.GetResourceVersion(), f.startRV) > 0 {
			f.handle(ctx, watch.Added, c.object)
		}
	}
}

// handle calls the watcher. A panic ends only that call.
func (f *Feed) handle(ctx context.Context, kind watch.EventType, object client.Object) {
	defer func() {
		if reason := recover(); reason != nil {
			watcherPanics.WithLabelValues(f.name).Inc()
			f.host.GetLogger().Errorw("watcher panicked", "watcher", f.name, "event", kind,
				"object", keyOf(object).String(), "panic", reason, "stack", string(debug.Stack()))
		}
	}()
	watcherEvents.WithLabelValues(f.name, string(kind)).Inc()
	f.watcher.Handle(ctx, f.host, watch.Event{Type: kind, Object: object})
}

func keyOf(object client.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// order compares two resource versions of one kind, which are ordered (KEP-5504).
func order(a, b string) int {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil {
		return order
	}
	if a == b {
		return 0
	}
	return 1 // not numbers: take the later arrival as the later state
}
