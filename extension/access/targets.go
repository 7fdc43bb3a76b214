package access

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// targets watches the targets of templates: each by its own name and only its
// metadata, so that memory and traffic follow the templates and not the cluster.
type targets struct {
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

func newTargets(c cluster.Cluster) (*targets, error) {
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(c.GetConfig()), c.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	return &targets{
		cluster: c, client: client, changed: make(chan event.GenericEvent), running: make(chan struct{}),
		watched: map[types.NamespacedName]*targetWatch{},
	}, nil
}

// Start runs the watches until ctx ends.
func (t *targets) Start(ctx context.Context) error {
	t.ctx = ctx
	close(t.running)
	<-ctx.Done()
	t.mu.Lock()
	defer t.mu.Unlock() // none is added after this
	t.group.Wait()
	return nil
}

// watch makes sure that a template's target is watched.
func (t *targets) watch(template types.NamespacedName, ref v1alpha1.ControllerTargetRef) error {
	<-t.running
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watched[template]; w != nil {
		if w.ref == ref {
			return nil
		}
		w.stop()
		delete(t.watched, template)
	}
	if t.ctx.Err() != nil {
		return t.ctx.Err()
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	mapping, err := t.cluster.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if missing(err) {
		return nil // the cluster does not know the kind, and so the target is missing
	}
	if err != nil {
		return fmt.Errorf("target %s: %w", ref, err)
	}
	informer := metadatainformer.NewFilteredMetadataInformer(t.client, mapping.Resource, template.Namespace, 0, toolscache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, ref.Name).String()
	}).Informer()
	ctx, stop := context.WithCancel(t.ctx)
	changed := func(any) {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: template.Namespace, Name: template.Name}}
		select {
		case t.changed <- event.GenericEvent{Object: object}:
		case <-ctx.Done():
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed}); err != nil {
		stop()
		return fmt.Errorf("target %s: %w", ref, err)
	}
	t.watched[template] = &targetWatch{ref: ref, stop: stop}
	t.group.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// forget ends the watch of a template's target.
func (t *targets) forget(template types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watched[template]; w != nil {
		w.stop()
		delete(t.watched, template)
	}
}
