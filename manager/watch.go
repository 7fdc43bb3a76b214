package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clientgocache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
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

// watchPods feeds the watchers until ctx ends. It uses an informer, because that lists
// before it watches. After a lost connection or an expired resource version it lists
// again and finds every change in between, deletions included.
func (m *Manager) watchPods(ctx context.Context, as extension.Manager, watchers []extension.Watcher) error {
	namespace := m.options.Namespace
	// An informer retries forever, but a missing right should end the start.
	if _, err := m.clientset.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("watching Pods in namespace %q: %w", namespace, err)
	}
	informer := informers.NewSharedInformerFactoryWithOptions(m.clientset, 0,
		informers.WithNamespace(namespace),
		informers.WithTransform(ctrlcache.TransformStripManagedFields()),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			if m.options.PodSelector != nil {
				options.LabelSelector = metav1.FormatLabelSelector(m.options.PodSelector)
			}
		}),
	).Core().V1().Pods().Informer()
	log := m.options.Logger
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *clientgocache.Reflector, err error) {
		log.Infow("watch of Pods ended and begins again", "reason", err)
	}); err != nil {
		return err
	}
	var feeds sync.WaitGroup
	for _, watcher := range watchers {
		f := newFeed(watcher, as, m.options.Watching.QueueLength, m.options.WatcherStartRV)
		handler, err := informer.AddEventHandler(f)
		if err != nil {
			return err
		}
		feeds.Go(func() { f.run(ctx, handler.HasSynced) })
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
