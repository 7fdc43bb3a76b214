package cachesync

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// parallelCache is a cache of several namespaces that are filled at the same time, and do not
// wait for each other for ever.
//
// That of controller-runtime fills one after the other, in at least 100 ms for each, so that
// a manager of 200 namespaces would begin its work 20 s after its start. And it waits for
// all of them: whoever can take the manager's rights away in one namespace, by deleting its
// Role there, would keep it from ending access in all others once it starts again. So
// controllers start after a while with what there is. Nothing is decided without what is
// missing: a read of it fails until it is there.
type parallelCache struct {
	cache.Cache
	log logr.Logger
	// syncTimeout is how long controllers wait for namespaces that cannot be read.
	syncTimeout time.Duration

	start   sync.Once
	started chan struct{}
	// over is closed when syncTimeout is over.
	over chan struct{}
}

func newParallelCache(inner cache.Cache, log logr.Logger, syncTimeout time.Duration) *parallelCache {
	return &parallelCache{Cache: inner, log: log, syncTimeout: syncTimeout, started: make(chan struct{}), over: make(chan struct{})}
}

// Start fills the cache until ctx ends.
func (t *parallelCache) Start(ctx context.Context) error {
	t.start.Do(func() {
		timer := time.AfterFunc(t.syncTimeout, func() { close(t.over) })
		context.AfterFunc(ctx, func() { timer.Stop() })
		close(t.started)
	})
	return t.Cache.Start(ctx)
}

func (t *parallelCache) isOver() bool {
	select {
	case <-t.over:
		return true
	default:
		return false
	}
}

// WaitForCacheSync waits until the cache is filled, or syncTimeout is over.
func (t *parallelCache) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-t.started:
	case <-ctx.Done():
		return false
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.over:
			cancel()
		case <-waiting.Done():
		}
	}()
	return t.Cache.WaitForCacheSync(waiting) || ctx.Err() == nil
}

// GetInformer returns the informer of a kind when it is filled, or syncTimeout is over.
func (t *parallelCache) GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := t.Cache.GetInformer(ctx, obj, append(slices.Clip(opts), cache.BlockUntilSynced(false))...)
	if err != nil {
		return nil, err
	}
	patient := &lenientInformer{informer, t}
	var options cache.InformerGetOptions
	for _, opt := range opts {
		opt(&options)
	}
	block := options.BlockUntilSynced == nil || *options.BlockUntilSynced
	select {
	case <-t.started:
	default:
		block = false // as controller-runtime has it
	}
	if block && !toolscache.WaitForCacheSync(ctx.Done(), patient.HasSynced) {
		return nil, ctx.Err()
	}
	if block && !informer.HasSynced() {
		t.log.Error(nil, "some namespaces cannot be read, and nothing is done in them until they can: give the manager its rights there again, or take them off its list",
			"kind", fmt.Sprintf("%T", obj), "waited", t.syncTimeout.String())
	}
	return patient, nil
}

// Get reads an object.
func (t *parallelCache) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	ctx, cancel := t.impatient(ctx)
	defer cancel()
	return t.Cache.Get(ctx, key, obj, opts...)
}

// List reads objects.
func (t *parallelCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	ctx, cancel := t.impatient(ctx)
	defer cancel()
	return t.Cache.List(ctx, list, opts...)
}

// impatient bounds a read once syncTimeout is over. A read of what is there takes no time; one
// of a namespace that cannot be read would hold up a worker, and with it all others.
func (t *parallelCache) impatient(ctx context.Context) (context.Context, context.CancelFunc) {
	if !t.isOver() {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, 5*time.Millisecond)
}

// lenientInformer has synced when syncTimeout is over, too.
type lenientInformer struct {
	cache.Informer
	of *parallelCache
}

func (i *lenientInformer) HasSynced() bool { return i.Informer.HasSynced() || i.of.isOver() }

func (i *lenientInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.patient(i.Informer.AddEventHandler(handler))
}

func (i *lenientInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, period time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.patient(i.Informer.AddEventHandlerWithResyncPeriod(handler, period))
}

func (i *lenientInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.patient(i.Informer.AddEventHandlerWithOptions(handler, options))
}

func (i *lenientInformer) patient(registration toolscache.ResourceEventHandlerRegistration, err error) (toolscache.ResourceEventHandlerRegistration, error) {
	if err != nil {
		return nil, err
	}
	return &patientRegistration{registration, i.of}, nil
}

func (i *lenientInformer) RemoveEventHandler(registration toolscache.ResourceEventHandlerRegistration) error {
	if patient, ok := registration.(*patientRegistration); ok {
		registration = patient.ResourceEventHandlerRegistration
	}
	return i.Informer.RemoveEventHandler(registration)
}

type patientRegistration struct {
	toolscache.ResourceEventHandlerRegistration
	of *parallelCache
}

func (r *patientRegistration) HasSynced() bool {
	return r.ResourceEventHandlerRegistration.HasSynced() || r.of.isOver()
}
