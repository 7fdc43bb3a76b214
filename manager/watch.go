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
	"k8s.io/apimachinery/pkg/watch"
	clientgocache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
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

// watch feeds the watchers until ctx ends. They share an informer if they see the same
// objects.
func (m *Manager) watch(ctx context.Context, as extension.Manager, mapper meta.RESTMapper, watchers []extension.Watcher) error {
	var pods []extension.Watcher
	others := map[string][]extension.Watcher{}
	seen := map[string]host.Watched{}
	for _, w := range watchers {
		watched, ofKind, err := host.WatchedBy(w, m.options.Scheme)
		if err != nil {
			return err
		}
		if !ofKind {
			pods = append(pods, w)
			continue
		}
		key := fmt.Sprintf("%T %s %s", watched.Object, watched.Kind, metav1.FormatLabelSelector(watched.Selector))
		others[key], seen[key] = append(others[key], w), watched
	}
	group, ctx := errgroup.WithContext(ctx)
	if len(pods) > 0 {
		group.Go(func() error {
			return m.feed(ctx, as, "Pods", m.listPods(), &corev1.Pod{}, pods, m.options.WatcherStartRV)
		})
	}
	for key, watched := range seen {
		list, err := m.listKind(mapper, watched)
		if err != nil {
			return err
		}
		// A resource version of Pods says nothing of other kinds.
		group.Go(func() error { return m.feed(ctx, as, watched.Kind.String(), list, watched.Object, others[key], "") })
	}
	return group.Wait()
}

// listPods lists and watches the Pods that Watchers see.
func (m *Manager) listPods() *clientgocache.ListWatch {
	pods := m.clients.Core.Pods(m.options.Namespace)
	selects := func(options *metav1.ListOptions) {
		if m.options.PodSelector != nil {
			options.LabelSelector = metav1.FormatLabelSelector(m.options.PodSelector)
		}
	}
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
}

// listKind lists and watches the objects that a WatcherOf sees.
func (m *Manager) listKind(mapper meta.RESTMapper, watched host.Watched) (*clientgocache.ListWatch, error) {
	if _, err := mapper.RESTMapping(watched.Kind.GroupKind(), watched.Kind.Version); meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("watching %s: the API server does not have this kind in %s: install its CustomResourceDefinition first", watched.Kind.Kind, watched.Kind.GroupVersion())
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
	of := func(options metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: m.options.Namespace, LabelSelector: selector, Limit: options.Limit, Continue: options.Continue, Raw: &options}
	}
	if _, err := watched.NewList(m.options.Scheme); err != nil {
		return nil, err
	}
	return &clientgocache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := watched.NewList(m.options.Scheme)
			if err != nil {
				return nil, err
			}
			return list, kube.List(ctx, list, of(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			list, err := watched.NewList(m.options.Scheme)
			if err != nil {
				return nil, err
			}
			return kube.Watch(ctx, list, of(options))
		},
	}, nil
}

// feed passes the events of one informer to watchers until ctx ends. It uses an informer,
// because that lists before it watches. After a lost connection or an expired resource
// version it lists again and finds every change in between, deletions included.
func (m *Manager) feed(ctx context.Context, as extension.Manager, what string, list *clientgocache.ListWatch, example runtime.Object, watchers []extension.Watcher, startRV string) error {
	// An informer retries forever, but a missing right should end the start.
	if _, err := list.ListWithContext(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("watching %s in namespace %q: %w", what, m.options.Namespace, err)
	}
	informer := clientgocache.NewSharedIndexInformer(list, example, 0, clientgocache.Indexers{})
	log := m.options.Logger
	if err := errors.Join(
		informer.SetTransform(ctrlcache.TransformStripManagedFields()),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *clientgocache.Reflector, err error) {
			log.Infow("watch of "+what+" ended and begins again", "reason", err)
		}),
	); err != nil {
		return err
	}
	var feeds sync.WaitGroup
	for _, watcher := range watchers {
		f := feed.New(watcher, as, m.options.Watching.QueueLength, startRV)
		handler, err := informer.AddEventHandler(f)
		if err != nil {
			return err
		}
		feeds.Go(func() { f.Run(ctx, handler.HasSynced) })
	}
	synced := informer.HasSynced
	m.podsSynced.Store(&synced, struct{}{})
	defer m.podsSynced.Delete(&synced)
	informer.RunWithContext(ctx)
	m.await(&feeds)
	return nil
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
