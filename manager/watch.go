package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clientgocache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/cachesync"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/manager/internal/feed"
)

// Watch runs only the watchers, until ctx ends or Stop is called.
func (m *Manager) Watch(ctx context.Context) error {
	return m.run(ctx, func(ctx context.Context) error {
		if len(m.parts.Watchers) == 0 {
			return errors.New("there is no Watcher to run: add one with AddExtension")
		}
		return m.runBackground(ctx, m.everywhere(), background{watchers: m.once().watchers}, host.Watches)
	})
}

// watch feeds the watchers until ctx ends. They share informers if they see the same
// objects.
func (m *Manager) watch(ctx context.Context, as extension.Manager, mapper meta.RESTMapper, watchers []extension.Watcher) error {
	pods := m.fedPods()
	fed := map[string]*fed{}
	for _, w := range watchers {
		watched, ofKind, err := host.WatchedBy(w, m.options.Scheme)
		if err != nil {
			return err
		}
		if !ofKind {
			pods.watchers = append(pods.watchers, w)
			fed["pods"] = pods
			continue
		}
		key := fmt.Sprintf("%T %s %s", watched.Object, watched.Kind, metav1.FormatLabelSelector(watched.Selector))
		if fed[key] == nil {
			if fed[key], err = m.fedKind(mapper, watched); err != nil {
				return err
			}
		}
		fed[key].watchers = append(fed[key].watchers, w)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range fed {
		group.Go(func() error { return m.feed(ctx, as, f) })
	}
	return group.Wait()
}

// fed are watchers that see the same objects.
type fed struct {
	watchers []extension.Watcher
	kind     schema.GroupVersionKind
	// example is an object of the kind in the form that they take.
	example runtime.Object
	// namespaces are those of the objects; "" stands for all.
	namespaces []string
	// list lists and watches the objects of a namespace.
	list    func(namespace string) *clientgocache.ListWatch
	startRV string
}

// fedPods returns the Pods that Watchers see.
func (m *Manager) fedPods() *fed {
	selects := func(options *metav1.ListOptions) {
		if m.options.PodSelector != nil {
			options.LabelSelector = metav1.FormatLabelSelector(m.options.PodSelector)
		}
	}
	return &fed{
		kind: corev1.SchemeGroupVersion.WithKind("Pod"), example: &corev1.Pod{}, namespaces: m.namespaces(), startRV: m.options.WatcherStartRV,
		list: func(namespace string) *clientgocache.ListWatch {
			pods := m.clients.Core.Pods(namespace)
			return &clientgocache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
					selects(&options)
					return pods.List(ctx, options)
				},
				WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
					selects(&options)
					return pods.Watch(ctx, options)
				},
			}
		},
	}
}

// fedKind returns the objects that a WatcherOf sees.
func (m *Manager) fedKind(mapper meta.RESTMapper, watched host.Watched) (*fed, error) {
	mapping, err := mapper.RESTMapping(watched.Kind.GroupKind(), watched.Kind.Version)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", watched.Kind.Kind, cachesync.Explain(watched.Kind, err))
	}
	kube, err := client.NewWithWatch(m.options.RESTConfig, client.Options{HTTPClient: m.httpClient, Scheme: m.options.Scheme, Mapper: mapper})
	if err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(watched.Selector)
	if watched.Selector == nil {
		selector = nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := watched.NewList(m.options.Scheme); err != nil {
		return nil, err
	}
	// A resource version of Pods says nothing of other kinds.
	f := &fed{kind: watched.Kind, example: watched.Object, namespaces: []string{metav1.NamespaceAll}}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		f.namespaces = m.namespaces()
	}
	f.list = func(namespace string) *clientgocache.ListWatch {
		of := func(options metav1.ListOptions) (client.ObjectList, *client.ListOptions, error) {
			list, err := watched.NewList(m.options.Scheme)
			return list, &client.ListOptions{Namespace: namespace, LabelSelector: selector, Limit: options.Limit, Continue: options.Continue, Raw: &options}, err
		}
		return &clientgocache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				list, selected, err := of(options)
				if err != nil {
					return nil, err
				}
				return list, kube.List(ctx, list, selected)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				list, selected, err := of(options)
				if err != nil {
					return nil, err
				}
				return kube.Watch(ctx, list, selected)
			},
		}
	}
	return f, nil
}

// feed passes the events of objects to watchers until ctx ends. It uses informers, one for
// each namespace, because these list before they watch. After a lost connection or an
// expired resource version they list again and find every change in between, deletions
// included.
func (m *Manager) feed(ctx context.Context, as extension.Manager, f *fed) error {
	// An informer retries forever, but a missing right should end the start.
	if err := m.inSome(f.kind, f.namespaces, func(namespace string) error {
		_, err := f.list(namespace).ListWithContext(ctx, metav1.ListOptions{Limit: 1})
		return err
	}); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("watching %s: %w", f.kind.Kind, err)
	}
	informers := make([]clientgocache.SharedIndexInformer, len(f.namespaces))
	for i, namespace := range f.namespaces {
		informers[i] = clientgocache.NewSharedIndexInformer(f.list(namespace), f.example, 0, clientgocache.Indexers{})
		if err := informers[i].SetTransform(ctrlcache.TransformStripManagedFields()); err != nil {
			return err
		}
	}
	defer m.caches.Add(f.kind, informers...)()
	var feeds, running sync.WaitGroup
	for _, watcher := range f.watchers {
		fed := feed.New(watcher, as, m.options.Watching.QueueLength, f.startRV)
		all := make([]clientgocache.InformerSynced, len(informers))
		for i, informer := range informers {
			handler, err := informer.AddEventHandler(fed)
			if err != nil {
				return err
			}
			all[i] = handler.HasSynced
		}
		synced := someSynced(all, time.Now().Add(cachesync.Timeout))
		feeds.Go(func() { fed.Run(ctx, synced) })
	}
	for _, informer := range informers {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	running.Wait()
	m.await(&feeds)
	return nil
}

// someSynced reports whether all have synced, or after a while some of them: a namespace
// that cannot be read must not hold up the others.
func someSynced(all []clientgocache.InformerSynced, until time.Time) clientgocache.InformerSynced {
	return func() bool {
		done := 0
		for _, synced := range all {
			if synced() {
				done++
			}
		}
		return done == len(all) || done > 0 && time.Now().After(until)
	}
}

// watcherGrace is how long a watcher may take to stop.
const watcherGrace = 5 * time.Second

// await waits for the watchers to end, but for watcherGrace at most.
func (m *Manager) await(feeds *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		feeds.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(watcherGrace):
		m.options.Logger.Warnw("a watcher has not ended; stopping without it", "after", watcherGrace)
	}
}
