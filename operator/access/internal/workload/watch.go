package workload

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Watches watch the targets of templates, each by its own name and only its
// metadata, so that memory and traffic follow the templates and not the cluster.
type Watches struct {
	cluster cluster.Cluster
	client  metadata.Interface
	changed chan event.GenericEvent

	running chan struct{}
	ctx     context.Context
	group   sync.WaitGroup

	mu      sync.Mutex
	watched map[types.NamespacedName]*targetWatch
}

// targetWatch is the watch of one template's target.
type targetWatch struct {
	ref  v1alpha1.ControllerTargetRef
	stop context.CancelFunc
}

// NewWatches returns a Runnable that watches the targets it is given.
func NewWatches(c cluster.Cluster) (*Watches, error) {
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(c.GetConfig()), c.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	return &Watches{
		cluster: c, client: client, changed: make(chan event.GenericEvent), running: make(chan struct{}),
		watched: map[types.NamespacedName]*targetWatch{},
	}, nil
}

// Changed delivers the name of a template when its target appears, disappears, or gets
// another spec.
func (w *Watches) Changed() <-chan event.GenericEvent { return w.changed }

// Start runs the watches until ctx ends.
func (w *Watches) Start(ctx context.Context) error {
	w.ctx = ctx
	close(w.running)
	<-ctx.Done()
	w.mu.Lock()
	defer w.mu.Unlock() // none is added after this
	w.group.Wait()
	return nil
}

// Watch makes sure that a template's target is watched.
func (w *Watches) Watch(ctx context.Context, template types.NamespacedName, ref v1alpha1.ControllerTargetRef) error {
	select {
	case <-w.running:
	case <-ctx.Done():
		return ctx.Err()
	}
	if w.watches(template, ref) {
		return nil
	}
	w.Forget(template)
	// Not while the lock is held, without which the manager cannot stop: it may ask the
	// API server.
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	mapping, err := w.cluster.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if Missing(err) {
		return nil // the cluster does not know the kind, and so the target is missing
	}
	if err != nil {
		return fmt.Errorf("target %s: %w", ref, err)
	}
	namespace := template.Namespace
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		namespace = "" // a ClusterRole
	}
	return w.add(template, ref, mapping.Resource, namespace)
}

func (w *Watches) watches(template types.NamespacedName, ref v1alpha1.ControllerTargetRef) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	watch := w.watched[template]
	return watch != nil && watch.ref == ref
}

// add watches the target of a template, unless another attempt has done so meanwhile.
func (w *Watches) add(template types.NamespacedName, ref v1alpha1.ControllerTargetRef, resource schema.GroupVersionResource, namespace string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil || w.watched[template] != nil {
		return w.ctx.Err()
	}
	ctx, stop := context.WithCancel(w.ctx)
	informer := w.informer(resource, namespace, ref.Name)
	changed := w.notify(ctx, template)
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed,
		UpdateFunc: func(before, after any) {
			if versionOf(before) != versionOf(after) {
				changed(after)
			}
		},
	}); err != nil {
		stop()
		return fmt.Errorf("target %s: %w", ref, err)
	}
	w.watched[template] = &targetWatch{ref: ref, stop: stop}
	w.group.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// version tells a target from another of its name, and counts the changes of a workload's
// spec. Its status changes far more often. Roles have no generation.
type version struct {
	uid        types.UID
	generation int64
}

func versionOf(object any) version {
	if object, ok := object.(metav1.Object); ok {
		return version{object.GetUID(), object.GetGeneration()}
	}
	return version{}
}

// informer returns an informer of one object's metadata.
func (w *Watches) informer(resource schema.GroupVersionResource, namespace, name string) toolscache.SharedIndexInformer {
	return metadatainformer.NewFilteredMetadataInformer(w.client, resource, namespace, 0, toolscache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}).Informer()
}

// notify returns a handler that delivers the name of a template.
func (w *Watches) notify(ctx context.Context, template types.NamespacedName) func(any) {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: template.Namespace, Name: template.Name}}
	return func(any) {
		select {
		case w.changed <- event.GenericEvent{Object: object}:
		case <-ctx.Done():
		}
	}
}

// Forget ends the watch of a template's target.
func (w *Watches) Forget(template types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if watch := w.watched[template]; watch != nil {
		watch.stop()
		delete(w.watched, template)
	}
}
