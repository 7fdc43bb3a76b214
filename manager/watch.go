package manager

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	clientgocache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/admitkit/admitkit/extension"
)

// Watch runs only the watchers, until ctx ends or Stop is called.
func (m *Manager) Watch(ctx context.Context) error {
	ctx, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer m.cancel()
	defer m.httpClient.CloseIdleConnections()
	if len(m.watchers) == 0 {
		return errors.New("manager: there is no Watcher to run")
	}
	if err := m.reach(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	if err := m.watchPods(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

// watchPods feeds the watchers until ctx ends. It is an informer, because that
// lists before it watches, and after a lost connection or an expired resource
// version lists again and finds out what went by. Each watcher has a queue of
// its own there.
func (m *Manager) watchPods(ctx context.Context) error {
	namespace := m.options.Namespace
	// An informer tries for ever; a right that is missing should be said.
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
		log.Infow("watch of Pods begins anew", "reason", err)
	}); err != nil {
		return err
	}
	for _, watcher := range m.watchers {
		if _, err := informer.AddEventHandler(m.podEvents(ctx, watcher)); err != nil {
			return err
		}
	}
	synced := informer.HasSynced
	m.podsSynced.Store(&synced)
	defer m.podsSynced.Store(nil)
	informer.RunWithContext(ctx)
	return nil
}

// podEvents turns an informer's calls into the events of a watch.
func (m *Manager) podEvents(ctx context.Context, watcher extension.Watcher) clientgocache.ResourceEventHandler {
	handle := func(kind watch.EventType, pod *corev1.Pod) {
		defer func() {
			if reason := recover(); reason != nil {
				m.options.Logger.Errorw("watcher panicked", "watcher", fmt.Sprintf("%T", watcher), "event", kind,
					"pod", pod.Namespace+"/"+pod.Name, "panic", reason, "stack", string(debug.Stack()))
			}
		}()
		watcher.Handle(ctx, m, watch.Event{Type: kind, Object: pod})
	}
	return clientgocache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, inInitialList bool) {
			pod := obj.(*corev1.Pod)
			if inInitialList && m.beforeStart(pod) {
				return
			}
			handle(watch.Added, pod)
		},
		UpdateFunc: func(before, after any) {
			pod := after.(*corev1.Pod)
			// A list after a lost connection repeats what has not changed.
			if before.(*corev1.Pod).ResourceVersion != pod.ResourceVersion {
				handle(watch.Modified, pod)
			}
		},
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(clientgocache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				handle(watch.Deleted, pod)
			}
		},
	}
}

// beforeStart reports whether a Pod has not changed since WatcherStartRV.
// Resource versions of one resource are ordered (KEP-5504).
func (m *Manager) beforeStart(pod *corev1.Pod) bool {
	if m.options.WatcherStartRV == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, m.options.WatcherStartRV)
	return err == nil && order <= 0
}
