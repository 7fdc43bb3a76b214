package admit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// NewCache returns a cache for the manager's client, and for cluster.New, which asks its
// manager for one. It is controller-runtime's, with informers that hold what is in the
// cluster at this moment: nothing starts, and no test waits.
func (h *standIn) NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	if err := h.selectable(options); err != nil {
		return nil, err
	}
	live := &liveCache{}
	options.NewInformer = func(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := toolscache.NewSharedIndexInformer(lw, object, resync, indexers)
		return &liveInformer{informer, &liveIndexer{informer.GetIndexer(), h.ctx, toolscache.ToListerWatcherWithContext(lw), nil, live}}
	}
	var err error
	if live.Cache, err = cache.New(config, options); err != nil {
		return nil, err
	}
	// A cache that has ended answers like one that runs.
	ended, end := context.WithCancel(h.ctx)
	end()
	if err := live.Cache.Start(ended); err != nil {
		return nil, err
	}
	live.WaitForCacheSync(h.ctx)
	return live, nil
}

// selectable returns an error for a selection that the API server refuses. In a cluster,
// such a cache would never be synced.
func (h *standIn) selectable(options cache.Options) error {
	for object, by := range options.ByObject {
		kind, err := apiutil.GVKForObject(object, options.Scheme)
		if err != nil {
			return err
		}
		selectors := []fields.Selector{by.Field}
		for _, in := range by.Namespaces {
			selectors = append(selectors, in.FieldSelector)
		}
		for _, selector := range selectors {
			if selector == nil {
				continue
			}
			if err := h.kinds.Selectable(kind, selector); err != nil {
				return fmt.Errorf("a cache cannot select a %s by %s: %w", kind.Kind, selector, err)
			}
		}
	}
	return nil
}

// liveCache is a cache of liveInformers.
type liveCache struct {
	cache.Cache
	mu sync.Mutex
	// failed is the error of an indexer whose method cannot return it.
	failed error
}

// Start waits for the end: NewCache has done the rest.
func (*liveCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// List reads objects, always in the same order.
func (c *liveCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := client.ListOptions{}
	asked.ApplyOptions(opts)
	limit := asked.Limit
	asked.Limit, c.failed = 0, nil
	if err := errors.Join(c.Cache.List(ctx, list, &asked), c.failed); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	slices.SortFunc(items, func(a, b runtime.Object) int {
		return cmp.Compare(client.ObjectKeyFromObject(a.(client.Object)).String(), client.ObjectKeyFromObject(b.(client.Object)).String())
	})
	if limit > 0 && int64(len(items)) > limit {
		items = items[:limit]
	}
	return meta.SetList(list, items)
}

// liveInformer never runs, so that its handlers are not called.
type liveInformer struct {
	toolscache.SharedIndexInformer
	indexer *liveIndexer
}

func (*liveInformer) Run(<-chan struct{})                           {}
func (*liveInformer) RunWithContext(context.Context)                {}
func (*liveInformer) HasSynced() bool                               { return true }
func (*liveInformer) HasSyncedChecker() toolscache.DoneChecker      { return synced{} }
func (*liveInformer) RemoveEventHandler(registration) error         { return nil }
func (*liveInformer) AddEventHandler(handler) (registration, error) { return synced{}, nil }

func (*liveInformer) AddEventHandlerWithResyncPeriod(handler, time.Duration) (registration, error) {
	return synced{}, nil
}

func (*liveInformer) AddEventHandlerWithOptions(handler, toolscache.HandlerOptions) (registration, error) {
	return synced{}, nil
}

func (i *liveInformer) GetStore() toolscache.Store     { return i.indexer }
func (i *liveInformer) GetIndexer() toolscache.Indexer { return i.indexer }

func (i *liveInformer) SetTransform(transform toolscache.TransformFunc) error {
	i.indexer.transform = transform
	return nil
}

type (
	handler      = toolscache.ResourceEventHandler
	registration = toolscache.ResourceEventHandlerRegistration
)

// synced is what has nothing to wait for.
type synced struct{}

func (synced) Name() string                             { return "testing/admit" }
func (synced) HasSynced() bool                          { return true }
func (synced) HasSyncedChecker() toolscache.DoneChecker { return synced{} }

func (synced) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// liveIndexer reads the cluster with the calls of an informer. The embedded Indexer has the
// functions of the indexes, and no objects.
type liveIndexer struct {
	toolscache.Indexer
	ctx       context.Context // of the test
	cluster   toolscache.ListerWatcherWithContext
	transform toolscache.TransformFunc
	of        *liveCache
}

// read lists the objects, and watches them as well, because an informer without that right
// would not work.
func (i *liveIndexer) read() (toolscache.Indexer, error) {
	list, err := i.cluster.ListWithContext(i.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	version, err := meta.NewAccessor().ResourceVersion(list)
	if err != nil {
		return nil, err
	}
	watching, err := i.cluster.WatchWithContext(i.ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return nil, err
	}
	watching.Stop()
	objects := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, i.GetIndexers())
	return objects, meta.EachListItem(list, func(object runtime.Object) (err error) {
		var held any = object
		if i.transform != nil {
			if held, err = i.transform(object); err != nil {
				return err
			}
		}
		return objects.Add(held)
	})
}

func (i *liveIndexer) List() []any {
	objects, err := i.read()
	if err != nil {
		i.of.failed = err
		return nil
	}
	return objects.List()
}

func (i *liveIndexer) GetByKey(key string) (item any, exists bool, err error) {
	objects, err := i.read()
	if err != nil {
		return nil, false, err
	}
	return objects.GetByKey(key)
}

func (i *liveIndexer) ByIndex(name, value string) ([]any, error) {
	objects, err := i.read()
	if err != nil {
		return nil, err
	}
	return objects.ByIndex(name, value)
}
