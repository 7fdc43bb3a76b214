package hook

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// ends deletes children at the time until which the answer of their hook was valid. It knows
// that from their label alone, so neither a hook that cannot be asked nor one that hangs is
// in the way, nor the restart of a leader: every replica does it.
type ends struct {
	engine  *engine
	elected <-chan struct{}
	queue   workqueue.TypedRateLimitingInterface[endKey]

	mu      sync.Mutex
	of      map[string]*ending
	stopped bool
}

// endKey names a child of a controller.
type endKey struct {
	controller      string
	resource        schema.GroupVersionResource
	namespace, name string
}

// ending is what is known of a controller whose children can end. It needs no more than the
// kinds: a controller whose hooks are wrong keeps its children no longer.
type ending struct {
	hash      string
	parents   []schema.GroupKind
	decorator string
	leases    []*lease
}

const (
	// standbyDelay is how much later a replica that does not lead deletes what the leader has
	// not: else each would send the same request.
	standbyDelay = 500 * time.Millisecond
	// lastEndDelay bounds the delay after which the deletion of a child is tried again.
	lastEndDelay = time.Second
)

var _ ctrlmanager.LeaderElectionRunnable = (*ends)(nil)

func newEnds(e *engine) *ends {
	return &ends{engine: e, elected: e.kube.Elected(), of: map[string]*ending{}, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[endKey](firstDelay, lastEndDelay))}
}

// NeedLeaderElection is false: what has ended must go while nobody leads, too.
func (*ends) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (e *ends) Start(ctx context.Context) error {
	var workers sync.WaitGroup
	for range e.engine.options.Workers {
		workers.Go(func() {
			for e.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	e.queue.ShutDown()
	workers.Wait()
	e.mu.Lock()
	e.stopped = true
	all := e.of
	e.of = map[string]*ending{}
	e.mu.Unlock()
	for _, each := range all {
		each.release()
	}
	return nil
}

func (e *ends) next(ctx context.Context) bool {
	key, shutdown := e.queue.Get()
	if shutdown {
		return false
	}
	defer e.queue.Done(key)
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if err := e.end(ctx, key); err != nil {
		if ctx.Err() == nil {
			e.engine.log.Warn("a child whose time is over cannot be deleted", zap.String("controller", key.controller),
				zap.String("child", key.resource.Resource+" "+key.namespace+"/"+key.name), zap.String("error", shorten(err.Error(), maxError)))
		}
		e.queue.AddRateLimited(key)
		return true
	}
	e.queue.Forget(key)
	return true
}

// end deletes a child if its time is over. It reads it first: a cache may be behind, and not
// know that the end was put off.
func (e *ends) end(ctx context.Context, key endKey) error {
	e.mu.Lock()
	of := e.of[key.controller]
	e.mu.Unlock()
	if of == nil {
		return nil
	}
	c := e.engine.dynamic.Resource(key.resource).Namespace(key.namespace)
	child, err := c.Get(ctx, key.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	until, ends := compose.Until(child)
	if !ends || child.GetDeletionTimestamp() != nil || !of.owns(child) {
		return nil
	}
	if wait := e.wait(until); wait > 0 {
		e.queue.AddAfter(key, wait)
		return nil
	}
	if err := apply.Delete(ctx, c, child); err != nil {
		return err
	}
	writesTotal.WithLabelValues(key.controller, "end").Inc()
	e.engine.log.Debug("deleted a child: the answer of its hook is not valid any more", zap.String("controller", key.controller), zap.Stringer("child", compose.IDOf(child)))
	return nil
}

// wait returns how long this replica leaves a child alone.
func (e *ends) wait(until time.Time) time.Duration {
	select {
	case <-e.elected:
		return time.Until(until)
	default:
		return time.Until(until) + standbyDelay
	}
}

// owns says whether an object is the child of a parent of the controller: somebody else may
// have copied the label.
func (e *ending) owns(child *compose.Object) bool {
	owner := metav1.GetControllerOfNoCopy(child)
	if owner == nil || e.decorator != "" && child.GetAnnotations()[compose.AnnotationDecorator] != e.decorator {
		return false
	}
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && slices.Contains(e.parents, version.WithKind(owner.Kind).GroupKind())
}

// endsReconciler has the children of the controllers of one kind watched, in each replica.
type endsReconciler struct {
	*ends
	kind string
}

func (r *reconciler) registerEnds(kube ctrlmanager.Manager) error {
	skip, everywhere := true, false
	return ctrl.NewControllerManagedBy(kube).
		Named("hook-ends-" + strings.ToLower(r.kind)).
		WithOptions(controller.Options{SkipNameValidation: &skip, NeedLeaderElection: &everywhere}).
		WatchesRawSource(source.Kind(r.cluster.GetCache(), client.Object(r.object()), &handler.EnqueueRequestForObject{})).
		Complete(&endsReconciler{r.ends, r.kind})
}

// Reconcile implements reconcile.Reconciler.
func (r *endsReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	object := (&reconciler{r.engine, r.kind}).object()
	object.SetName(req.Name)
	key := metricName(object)
	err := r.engine.cluster.GetCache().Get(ctx, req.NamespacedName, object)
	if apierrors.IsNotFound(err) || err == nil && !r.engine.selects(object) {
		r.keep(key, nil)
		forget(key)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	hash := digest(object.Object["spec"], object.GetUID())
	r.mu.Lock()
	old := r.of[key]
	r.mu.Unlock()
	if old != nil && old.hash == hash && !slices.ContainsFunc(old.leases, func(l *lease) bool { return l.brokenNow() != nil }) {
		return reconcile.Result{RequeueAfter: checkEvery}, nil // a watch may break
	}
	err = r.watch(ctx, key, hash, object)
	if _, fault := errors.AsType[*problem](err); fault { // the condition Ready has it; a kind may come
		return reconcile.Result{RequeueAfter: checkMissing}, nil
	}
	return reconcile.Result{RequeueAfter: checkEvery}, err
}

// checkMissing is how often a kind is looked for that the API server does not have.
const checkMissing = 5 * time.Second

// watch watches the children of a controller that have an end. What cannot be watched holds
// up no other kind.
func (e *ends) watch(ctx context.Context, key, hash string, object *unstructured.Unstructured) error {
	var of struct {
		Spec struct {
			ParentResource v1alpha1.ResourceRule   `json:"parentResource"`
			Resources      []v1alpha1.ResourceRule `json:"resources"`
			ChildResources []v1alpha1.ResourceRule `json:"childResources"`
			Attachments    []v1alpha1.ResourceRule `json:"attachments"`
		} `json:"spec"`
	}
	text, err := json.Marshal(map[string]any{"spec": object.Object["spec"]})
	if err == nil {
		err = json.Unmarshal(text, &of)
	}
	if err != nil {
		return fault("Invalid", err.Error())
	}
	ending, parents, children := &ending{}, []v1alpha1.ResourceRule{of.Spec.ParentResource}, of.Spec.ChildResources
	if object.GetKind() == "DecoratorController" {
		ending.decorator, parents, children = object.GetName(), of.Spec.Resources, of.Spec.Attachments
	}
	var errs []error
	for _, rule := range parents {
		kind, err := e.engine.kind(ctx, rule)
		if errs = append(errs, err); err == nil {
			ending.parents = append(ending.parents, kind.GroupKind())
		}
	}
	e.keep(key, ending) // before the first event
	for _, rule := range children {
		errs = append(errs, e.watchKind(ctx, key, ending, rule))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.mu.Lock()
	ending.hash = hash
	e.mu.Unlock()
	return nil
}

func (e *ends) watchKind(ctx context.Context, key string, ending *ending, rule v1alpha1.ResourceRule) error {
	kind, err := e.engine.kind(ctx, rule)
	if err != nil {
		return err
	}
	l, err := e.engine.watches.acquire(watchKey{GroupVersionResource: kind.resource, labels: compose.LabelValidUntil}, func(_, child *compose.Object) {
		if child == nil {
			return
		}
		if until, ends := compose.Until(child); ends {
			e.queue.AddAfter(endKey{key, kind.resource, child.GetNamespace(), child.GetName()}, e.wait(until))
		}
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	stopped := e.stopped
	if !stopped {
		ending.leases = append(ending.leases, l)
	}
	e.mu.Unlock()
	if stopped {
		l.release()
	}
	return nil
}

// keep replaces what is watched for a controller; nil is nothing.
func (e *ends) keep(key string, ending *ending) {
	e.mu.Lock()
	old := e.of[key]
	switch {
	case ending == nil:
		delete(e.of, key)
	case !e.stopped:
		e.of[key] = ending
	}
	e.mu.Unlock()
	if old != nil {
		old.release()
	}
}

// release ends the watches.
func (e *ending) release() {
	for _, l := range e.leases {
		l.release()
	}
}
