package hook

import (
	"context"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// watches are the informers, one for each resource, which controllers share.
type watches struct {
	dynamic dynamic.Interface

	// broken says that a watch has met an error that does not end by itself.
	broken chan struct{}

	mu  sync.Mutex
	all map[watchKey]*watched
}

func newWatches(dynamic dynamic.Interface) *watches {
	return &watches{dynamic: dynamic, broken: make(chan struct{}, 1), all: map[watchKey]*watched{}}
}

// watchKey names what is watched: all objects of a resource, one, or the metadata of those
// that labels select.
type watchKey struct {
	schema.GroupVersionResource
	namespace, name string
	labels          string
}

// watched is an informer that runs while somebody holds it.
type watched struct {
	cache.SharedIndexInformer
	holders int
	cancel  context.CancelFunc
	done    chan struct{}

	mu    sync.Mutex
	err   error
	errAt time.Time
}

// errorsLast is how long a watch that failed is believed not to work: it is begun anew after
// a minute at the latest, and fails again if it does not.
const errorsLast = 70 * time.Second

// lasts says that an error does not end by itself.
func lasts(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// brokenNow returns why the watch does not work now, if that does not end by itself.
func (w *watched) brokenNow() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if lasts(w.err) && time.Since(w.errAt) < errorsLast {
		return w.err
	}
	return nil
}

// lastError returns why the last list or watch failed.
func (w *watched) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// The indices of an informer.
const (
	byOwner     = "owner"      // of what has a controller: its UID
	byOrphanUID = "orphan-uid" // of what has none: the label controller-uid
	byOrphan    = "orphan"     // of what has none: the namespace
	byUID       = "uid"
)

var indexers = cache.Indexers{
	byOwner: func(o any) ([]string, error) {
		if ref := metav1.GetControllerOfNoCopy(o.(*unstructured.Unstructured)); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return nil, nil
	},
	byOrphanUID: func(o any) ([]string, error) {
		object := o.(*unstructured.Unstructured)
		if uid := object.GetLabels()[compose.LabelControllerUID]; uid != "" && metav1.GetControllerOfNoCopy(object) == nil {
			return []string{uid}, nil
		}
		return nil, nil
	},
	byOrphan: func(o any) ([]string, error) {
		object := o.(*unstructured.Unstructured)
		if metav1.GetControllerOfNoCopy(object) != nil {
			return nil, nil
		}
		return []string{object.GetNamespace()}, nil
	},
	byUID: func(o any) ([]string, error) { return []string{string(o.(*unstructured.Unstructured).GetUID())}, nil },
}

// lease is a handler on an informer, until it is released.
type lease struct {
	*watched
	key     watchKey
	watches *watches
	handler cache.ResourceEventHandlerRegistration
}

// acquire has on called with the old and the new state of each object, of which one may be
// nil.
func (w *watches) acquire(key watchKey, on func(before, after *unstructured.Unstructured)) (*lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	it := w.all[key]
	if it == nil {
		var err error
		if it, err = w.start(key); err != nil {
			return nil, err
		}
		w.all[key] = it
	}
	registration, err := it.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { on(nil, o.(*unstructured.Unstructured)) },
		UpdateFunc: func(a, b any) { on(a.(*unstructured.Unstructured), b.(*unstructured.Unstructured)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if object, ok := o.(*unstructured.Unstructured); ok {
				on(object, nil)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	it.holders++
	return &lease{it, key, w, registration}, nil
}

func (w *watches) start(key watchKey) (*watched, error) {
	var tweak dynamicinformer.TweakListOptionsFunc
	if key.name != "" {
		tweak = func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", key.name).String()
		}
	}
	transform := trim
	if key.labels != "" {
		tweak = func(o *metav1.ListOptions) { o.LabelSelector = key.labels }
		transform = trimToMetadata
	}
	it := &watched{done: make(chan struct{})}
	it.SharedIndexInformer = dynamicinformer.NewFilteredDynamicInformer(w.dynamic, key.GroupVersionResource, key.namespace, 0, indexers, tweak).Informer()
	if err := it.SetTransform(transform); err != nil {
		return nil, err
	}
	if err := it.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		it.mu.Lock()
		it.err, it.errAt = err, time.Now()
		it.mu.Unlock()
		if !lasts(err) {
			return
		}
		select {
		case w.broken <- struct{}{}:
		default:
		}
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	it.cancel = cancel
	go func() {
		defer close(it.done)
		it.RunWithContext(ctx)
	}()
	return it, nil
}

// trim removes managedFields, which are often half of an object.
func trim(o any) (any, error) {
	if object, ok := o.(*unstructured.Unstructured); ok {
		object.SetManagedFields(nil)
	}
	return o, nil
}

func trimToMetadata(o any) (any, error) {
	if object, ok := o.(*unstructured.Unstructured); ok {
		maps.DeleteFunc(object.Object, func(field string, _ any) bool {
			return field != "apiVersion" && field != "kind" && field != "metadata"
		})
	}
	return trim(o)
}

// release ends the handler, and the informer with its last one.
func (l *lease) release() {
	_ = l.RemoveEventHandler(l.handler)
	l.watches.mu.Lock()
	l.holders--
	last := l.holders == 0
	if last {
		delete(l.watches.all, l.key)
	}
	l.watches.mu.Unlock()
	if last {
		l.cancel()
		<-l.done
	}
}

// synced says whether the handler has seen all that there was.
func (l *lease) synced() bool { return l.handler.HasSynced() }

// get returns an object, or nil. It is shared: copy it to change it.
func (l *lease) get(namespace, name string) *unstructured.Unstructured {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	object, ok, err := l.GetStore().GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	return object.(*unstructured.Unstructured)
}

func (l *lease) list() []*unstructured.Unstructured { return objects(l.GetStore().List()) }

func (l *lease) indexed(index, value string) []*unstructured.Unstructured {
	all, err := l.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil
	}
	return objects(all)
}

func objects(all []any) []*unstructured.Unstructured {
	typed := make([]*unstructured.Unstructured, len(all))
	for i, o := range all {
		typed[i] = o.(*unstructured.Unstructured)
	}
	return typed
}
