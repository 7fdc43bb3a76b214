package binding

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// bindings reconciles the transient bindings of a kind: it reads the facts about one,
// decides, and applies the decision.
type bindings struct {
	*shared
	kind kind
	own  *expectations
	// failures and waits delay the next attempt. The queue's own limiter would not do:
	// the end must not wait for it.
	failures, waits workqueue.TypedRateLimiter[types.NamespacedName]
}

var _ extension.Reconciler = (*bindings)(nil)

func newBindings(s *shared, k kind) *bindings {
	return &bindings{
		shared: s, kind: k, own: newExpectations(),
		failures: workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](20*time.Millisecond, time.Second),
		waits:    workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](250*time.Millisecond, 10*time.Second),
	}
}

// Register makes the controller. It watches transient bindings, the bindings that carry our
// label, and the metadata of roles.
func (r *bindings) Register(mgr extension.Manager) error {
	if err := r.connect(mgr); err != nil {
		return err
	}
	// Alerts watch these from zero on.
	startLateness.WithLabelValues(r.kind.name)
	endLateness.WithLabelValues(r.kind.name)
	startedTotal.WithLabelValues(r.kind.name)
	endedTotal.WithLabelValues(r.kind.name)
	repairedTotal.WithLabelValues(r.kind.name)
	watches := map[client.Object]handler.EventHandler{r.kind.newObject(): r.ofObjects(), r.kind.newBinding(): r.ofBindings()}
	if r.kind.name == inNamespace.name {
		watches[roleMeta("Role")] = r.ofRoles("Role")
	}
	if r.list.hasClusterRoles() {
		watches[roleMeta("ClusterRole")] = r.ofRoles("ClusterRole")
	}
	if _, err := controller.New(mgr, "transient-"+r.kind.resource, r, r.options.Workers, r.cluster.GetCache(), watches); err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	return nil
}

// attemptTimeout bounds one attempt, so that an API server that does not answer holds a
// worker no longer than that.
const attemptTimeout = 10 * time.Second

// Reconcile brings a binding into the state that it should be in now, and returns when
// that changes.
func (r *bindings) Reconcile(ctx context.Context, item reconcile.Request) (reconcile.Result, error) {
	key, now := item.NamespacedName, r.options.Clock.Now()
	d, err := r.attempt(ctx, key, now)
	after := d.next.Sub(r.options.Clock.Now())
	if d.next.IsZero() {
		after = 0
	} else {
		after = max(after, time.Nanosecond)
	}
	switch {
	case err == nil && !d.poll:
		r.failures.Forget(key)
		r.waits.Forget(key)
	case err == nil:
		r.failures.Forget(key)
		after = min(after, r.waits.When(key))
	case ctx.Err() != nil:
		return reconcile.Result{}, nil //nolint:nilerr // the manager stops
	default:
		delay := r.failures.When(key)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // else the cache is behind
			r.log.Warn("attempt failed", zap.String("kind", r.kind.object), zap.Stringer("binding", key), zap.Duration("retry", delay), zap.Error(err))
		}
		if after > time.Nanosecond { // a moment that has passed is what failed
			delay = min(delay, after)
		}
		after = delay
	}
	result := reconcile.Result{RequeueAfter: after}
	if d.priority != 0 {
		result.Priority = &d.priority
	}
	return result, nil
}

// attempt reads, decides and applies. It never goes on beyond the end, for which the next
// one is due.
func (r *bindings) attempt(ctx context.Context, key types.NamespacedName, now time.Time) (decision, error) {
	again := decision{priority: controller.PriorityEnd}
	object, err := r.find(ctx, key)
	if err != nil {
		return again, err
	}
	limit := attemptTimeout
	if object != nil {
		if end := endOf(object, r.options.MaxDuration); end.After(now) {
			limit, again.next = min(limit, end.Sub(now)), end
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f, err := r.read(ctx, key, object, now)
	if err != nil {
		return again, err
	}
	d := decide(f, now)
	if err := r.apply(ctx, f, &d); err != nil {
		return again, err
	}
	return d, nil
}

// find returns an object from the cache, nil if it is gone or being deleted.
func (r *bindings) find(ctx context.Context, key types.NamespacedName) (v1alpha1.TransientBinding, error) {
	object := r.kind.newObject()
	err := r.cached.Get(ctx, key, object.(client.Object))
	if err != nil || !object.GetDeletionTimestamp().IsZero() {
		return nil, client.IgnoreNotFound(err)
	}
	return object, nil
}

// read gathers the facts.
func (r *bindings) read(ctx context.Context, key types.NamespacedName, object v1alpha1.TransientBinding, now time.Time) (*facts, error) {
	f := &facts{kind: r.kind, key: key, object: object, retention: r.options.Retention, notBefore: r.own.notBefore(key)}
	binding := r.kind.newBinding()
	err := r.cached.Get(ctx, key, binding)
	// The cache has what carries our label. One that lost it is found by its name.
	if apierrors.IsNotFound(err) && mayHave(object, now) {
		binding = r.kind.newBinding()
		err = r.live.Get(ctx, key, binding)
	}
	switch {
	case err == nil:
		f.binding = binding
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading %s %s: %w", r.kind.name, key, err)
	}
	if object == nil {
		return f, nil
	}
	f.end = endOf(object, r.options.MaxDuration)
	ref := object.GetBindingSpec().RoleRef.Ref()
	if f.refused = r.list.refuses(ref, key.Namespace); f.refused != "" {
		return f, nil // the cache may not have roles of this kind
	}
	f.roleUID, err = cluster.RoleUID(ctx, r.cached, ref, key.Namespace)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return f, nil
}

// mayHave reports whether a binding may exist that the cache does not have.
func mayHave(object v1alpha1.TransientBinding, now time.Time) bool {
	if object == nil {
		return false
	}
	status := object.GetBindingStatus()
	begun := !now.Before(begin(object)) || status.BindingUID != ""
	return begun && status.EndedAt == nil
}
