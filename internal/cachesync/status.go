// Package cachesync makes the caches of a process, and knows of which kinds they are not
// filled, and why.
//
// Read the files in this order:
//
//   - status.go: [Status] makes a cache, and says what it waits for.
//   - parallel.go: the cache of several namespaces.
package cachesync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Timeout is how long a cache of several namespaces waits for those that cannot be read.
const Timeout = 10 * time.Second

// Status knows the informers of a cache. An informer whose kind is not served, or that may
// not list it, tries again forever and says so nowhere.
type Status struct {
	scheme *runtime.Scheme
	log    logr.Logger

	mu    sync.Mutex
	kinds map[string]*kind // by the form in which it is read
	// over reports whether a kind need no longer be filled in every namespace.
	over func() bool
}

// kind is what is cached of a kind.
type kind struct {
	name schema.GroupVersionKind
	// missing is why it has no informer.
	missing   error
	informers []*informer // one for each namespace
	told      string
}

type informer struct {
	synced func() bool
	// failed is the last error of a list or watch.
	failed error
}

// New returns a Status without informers.
func New(scheme *runtime.Scheme, log logr.Logger) *Status {
	return &Status{scheme: scheme, log: log, kinds: map[string]*kind{}, over: func() bool { return false }}
}

// NewCache returns the cache whose Status it is. That of several namespaces waits for those
// that cannot be read until timeout is over.
func (s *Status) NewCache(config *rest.Config, options cache.Options, timeout time.Duration) (cache.Cache, error) {
	options.NewInformer = s.newInformer
	objects, err := cache.New(config, options)
	if err != nil {
		return nil, err
	}
	if len(options.DefaultNamespaces) > 1 {
		parallel := newParallelCache(objects, s.log, timeout)
		s.over, objects = parallel.isOver, parallel
	}
	return &statusCache{objects, s}, nil
}

func (s *Status) newInformer(lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	made := toolscache.NewSharedIndexInformer(lw, object, resync, indexers)
	if name, err := apiutil.GVKForObject(object, s.scheme); err == nil {
		s.add(keyOf(object, name), name, made)
	}
	return made
}

// Add adds informers of a kind that no cache has, one for each namespace, before they run.
// remove takes them away again.
func (s *Status) Add(name schema.GroupVersionKind, informers ...toolscache.SharedIndexInformer) (remove func()) {
	key := fmt.Sprintf("%p", informers)
	for _, made := range informers {
		s.add(key, name, made)
	}
	return func() { s.remove(key) }
}

func (s *Status) add(key string, name schema.GroupVersionKind, made toolscache.SharedIndexInformer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kind(key, name)
	i := &informer{synced: made.HasSynced}
	k.informers = append(k.informers, i)
	// It cannot fail: the informer does not run yet.
	_ = made.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) {
		if made.HasSynced() {
			s.log.Info("watch of "+name.Kind+" ended and begins again", "reason", err.Error())
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		i.failed = Explain(name, err)
		s.tell(k, i.failed)
	})
}

// kind returns the one with a key.
func (s *Status) kind(key string, name schema.GroupVersionKind) *kind {
	if s.kinds[key] == nil {
		s.kinds[key] = &kind{name: name}
	}
	return s.kinds[key]
}

// tell logs why a kind is not filled, each reason once.
func (s *Status) tell(k *kind, why error) {
	if text := why.Error(); text != k.told {
		k.told = text
		s.log.Error(why, "a cache cannot be filled; trying again", "kind", k.name.Kind, "version", k.name.GroupVersion().String())
	}
}

// miss keeps why a kind has no informer; nil if it has.
func (s *Status) miss(key string, name schema.GroupVersionKind, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kind(key, name)
	k.missing = why
	if why != nil {
		s.tell(k, why)
	}
}

func (s *Status) remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kinds, key)
}

// Forget forgets which kinds have no informer, when those that wanted one have ended.
func (s *Status) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		k.missing = nil
	}
}

// Check returns an error that names each kind of which the cache is not filled, and why.
func (s *Status) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, k := range s.kinds {
		if why := k.unfilled(s.over()); why != nil {
			all = append(all, fmt.Sprintf("the cache of %s is not filled: %v", k.name.Kind, why))
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return errors.New(strings.Join(slices.Compact(all), "; "))
}

var errFilling = errors.New("its objects are being listed")

// unfilled returns why a kind is not filled; nil if it is. partly says that one namespace is
// enough.
func (k *kind) unfilled(partly bool) error {
	why := k.missing
	for _, i := range k.informers {
		switch {
		case !i.synced() && i.failed != nil:
			why = i.failed
		case !i.synced() && why == nil:
			why = errFilling
		case i.synced() && partly:
			return nil
		}
	}
	return why
}

// Explain says what is missing if a kind cannot be listed or watched.
func Explain(name schema.GroupVersionKind, err error) error {
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return fmt.Errorf("the API server does not have this kind in %s: install its CustomResourceDefinition", name.GroupVersion())
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: grant get, list and watch, as the command manifests does for Reads and Rights", err)
	}
	return err
}

func keyOf(object runtime.Object, name schema.GroupVersionKind) string {
	return fmt.Sprintf("%T %s", object, name)
}

// statusCache tells a Status which informers there are not.
type statusCache struct {
	cache.Cache
	status *Status
}

func (c *statusCache) GetInformer(ctx context.Context, object client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	made, err := c.Cache.GetInformer(ctx, object, opts...)
	name, unknown := apiutil.GVKForObject(object, c.status.scheme)
	// The end of a context says nothing of the kind.
	if unknown == nil && (err == nil || ctx.Err() == nil) {
		var why error
		if err != nil {
			why = Explain(name, err)
		}
		c.status.miss(keyOf(object, name), name, why)
	}
	return made, err
}

func (c *statusCache) RemoveInformer(ctx context.Context, object client.Object) error {
	if name, err := apiutil.GVKForObject(object, c.status.scheme); err == nil {
		c.status.remove(keyOf(object, name))
	}
	return c.Cache.RemoveInformer(ctx, object)
}
