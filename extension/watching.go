package extension

import (
	"context"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WatcherOf sees every event of the objects of a kind: it is for any kind what [Watcher] is
// for Pods, with the same order, queue and isolation. event is watch.Added, watch.Modified or
// watch.Deleted. Copy obj before you change it. [Watching] makes what a manager's
// AddExtension takes.
//
// T is a pointer to the type of the objects, which the manager's scheme must have, for example
// *corev1.ConfigMap; or *unstructured.Unstructured or *metav1.PartialObjectMetadata, with the
// kind in the [WatchScope]. With *metav1.PartialObjectMetadata the API server sends only the
// metadata.
type WatcherOf[T client.Object] interface {
	Watch(ctx context.Context, mgr Manager, event watch.EventType, obj T)
}

// WatchScope says which objects reach a [WatcherOf]. Those with a namespace are those of the
// watched ones, or of every namespace if there are none.
type WatchScope struct {
	// Kind is the kind of the objects. Default: the one that the manager's scheme has for T.
	Kind schema.GroupVersionKind
	// Selector selects objects by their labels. An object that it no longer selects is
	// DELETED for the watcher. Default: all.
	Selector *metav1.LabelSelector
}

// KindWatcher is a [WatcherOf] with its [WatchScope]. Make one with [Watching].
type KindWatcher struct {
	// value is what it was made of, which may implement more.
	value  any
	scope  WatchScope
	object client.Object
	handle func(ctx context.Context, mgr Manager, event watch.Event)
}

var _ Watcher = (*KindWatcher)(nil)

// Watching makes a Watcher of a WatcherOf. The manager's rights to list and watch the kind
// are among those that the command manifests grants; for a custom kind it needs the
// CustomResourceDefinition. The WatcherOf may be [Entitled], [Hosted], [LeaderElected] and
// [Remover], too.
func Watching[T client.Object](w WatcherOf[T], scope WatchScope) *KindWatcher {
	made := &KindWatcher{
		value: w, scope: scope,
		handle: func(ctx context.Context, mgr Manager, event watch.Event) {
			w.Watch(ctx, mgr, event.Type, event.Object.(T))
		},
	}
	if typ := reflect.TypeFor[T](); typ.Kind() == reflect.Pointer {
		made.object = reflect.New(typ.Elem()).Interface().(client.Object)
	}
	return made
}

// Handle passes an event on. Its object must be a T.
func (w *KindWatcher) Handle(ctx context.Context, mgr Manager, event watch.Event) {
	w.handle(ctx, mgr, event)
}

// NeedLeaderElection says where the WatcherOf runs; see [LeaderElected].
func (w *KindWatcher) NeedLeaderElection() bool {
	elected, says := w.value.(LeaderElected)
	return !says || elected.NeedLeaderElection()
}
