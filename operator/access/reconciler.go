package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// requests reconciles the requests of one kind: it reads the facts about a request,
// decides, and applies the decision.
type requests struct {
	*shared
	kind  grant.Kind
	facts *facts.Reader

	// failures and waits delay the next attempt. The queue's own limiter would not
	// do: the end of access must not wait for it.
	failures, waits workqueue.TypedRateLimiter[types.NamespacedName]
	counted         liveGrants
	// untold has the records of policies that were restored, until they are made.
	untold sync.Map
	// woken has the requests about which a check has answered.
	woken chan event.GenericEvent
}

var _ extension.Reconciler = (*requests)(nil)

func newRequests(a *shared, k grant.Kind) *requests {
	return &requests{
		shared: a, kind: k, facts: facts.NewReader(a.Connection, k, a.checks, a.keep),
		failures: workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](20*time.Millisecond, time.Second),
		waits:    workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](200*time.Millisecond, 5*time.Second),
		counted:  liveGrants{kind: k.Name, keys: map[types.NamespacedName]bool{}},
		woken:    make(chan event.GenericEvent),
	}
}

// Register makes the controller. It watches requests, templates, and what requests
// get; enqueue decides the order in which they come.
func (r *requests) Register(mgr extension.Manager) error {
	if err := r.Setup(mgr); err != nil {
		return err
	}
	// Alerts watch these from zero on. Only a process that reconciles has them.
	lateness.WithLabelValues(r.kind.Name)
	grants.WithLabelValues(r.kind.Name)
	for _, what := range []string{egress.Deleted, egress.Changed} {
		restoredTotal.WithLabelValues(what)
	}
	keys := map[client.Object]func(context.Context, client.Object) []types.NamespacedName{
		r.kind.NewRequest():        r.keyOf,
		r.kind.NewTemplate():       r.waitingFor,
		&v1alpha1.AccessDecision{}: r.decidedBy,
		&rbacv1.Role{}:             r.ownerOf,
		&rbacv1.RoleBinding{}:      r.ownerOf,
	}
	if r.kind.MakesPod {
		keys[&corev1.Pod{}] = r.ownerOf
	}
	maps.Copy(keys, r.watchPolicies())
	watches := map[client.Object]handler.EventHandler{}
	for object, of := range keys {
		watches[object] = r.enqueue(of)
	}
	c, err := controller.New(mgr, "access-"+r.kind.Name+"-requests", r, r.workers, r.Cluster.GetCache(), watches)
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if err := c.Watch(source.Channel(r.woken, &handler.EnqueueRequestForObject{})); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if r.notifier != nil {
		if err := r.notifier.register(mgr); err != nil {
			return fmt.Errorf("access: Notifications: %w", err)
		}
	}
	return r.checks.Register(mgr, r.kind, r.wake)
}

// Reconcile brings a request into the state that it should be in now, and returns
// when that changes.
func (r *requests) Reconcile(ctx context.Context, item reconcile.Request) (reconcile.Result, error) {
	key := item.NamespacedName
	next, err := r.reconcile(ctx, key)
	if err == nil {
		r.failures.Forget(key)
		return r.result(next), nil
	}
	if ctx.Err() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // the manager stops
	}
	delay := r.failures.When(key)
	if !apierrors.IsConflict(err) { // else the cache is behind: what it lacks is on its way
		r.Log.Warn("attempt failed", zap.String("kind", r.kind.RequestKind), zap.Stringer("request", key), zap.Duration("retry", delay), zap.Error(err))
	}
	// A moment that has passed is what failed: it must not keep the delay from growing.
	if until := next.At.Sub(r.Clock.Now()); until > 0 {
		delay = min(delay, until)
	}
	return reconcile.Result{RequeueAfter: delay, Priority: r.result(next).Priority}, nil
}

func (r *requests) reconcile(ctx context.Context, key types.NamespacedName) (decision.Schedule, error) {
	req, err := within(ctx, kube.AttemptTimeout, func(ctx context.Context) (v1alpha1.Request, error) { return r.find(ctx, key) })
	if err != nil {
		return decision.Schedule{}, err
	}
	now := r.Clock.Now()
	due, err := within(ctx, patience(req, now), func(ctx context.Context) (decision.Schedule, error) {
		f, err := r.facts.Read(ctx, key, req, now)
		if err != nil {
			return decision.Next(f, now), err
		}
		return r.apply(ctx, f, decision.Of(f, now))
	})
	if errors.Is(err, errLeft) {
		due.Priority = controller.PriorityEnd // it may be due by now
	}
	return due, err
}

// find returns a request from the cache, nil if it is gone or being deleted.
func (r *requests) find(ctx context.Context, key types.NamespacedName) (v1alpha1.Request, error) {
	req := r.kind.NewRequest()
	err := r.Cached.Get(ctx, key, req)
	if err != nil || !req.GetDeletionTimestamp().IsZero() {
		return nil, client.IgnoreNotFound(err)
	}
	return req, nil
}

// patience returns how long an attempt may take: never beyond the end of access,
// for which the next attempt is due.
func patience(req v1alpha1.Request, now time.Time) time.Duration {
	if req == nil {
		return kube.AttemptTimeout
	}
	end, err := v1alpha1.EndOf(req)
	if remaining := end.Sub(now); err == nil && remaining > 0 {
		return min(remaining, kube.AttemptTimeout)
	}
	return kube.AttemptTimeout
}

// errLeft is the error of a step that was left behind.
var errLeft = errors.New("a step hangs, and was left behind")

// leaveAfter is how long a step has to return when its context ends.
const leaveAfter = 100 * time.Millisecond

// within runs a step that ends when limit is over or the manager stops, whatever the
// step does. All that a step waits for minds its context, so this is for what nobody
// thought of: a step that goes on is left behind, so that it neither holds its worker
// nor keeps the manager from stopping. It can do no harm, because every read and write
// of the API server needs the context.
//
// Nothing can stop a step that computes: it would go on to take processor time and
// memory. So what a user writes is bounded before it is computed with: texts by package
// command, which has no loops, and patches and Pods by package pod.
func within[T any](ctx context.Context, limit time.Duration, step func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type outcome struct {
		value T
		err   error
	}
	ended := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if reason := recover(); reason != nil { // in a goroutine of ours it would end the process
				o.err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
			}
			ended <- o
		}()
		o.value, o.err = step(ctx)
	}()
	select {
	case o := <-ended:
		return o.value, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-ended:
		return o.value, o.err
	case <-time.After(leaveAfter):
		return *new(T), fmt.Errorf("%w: %w", errLeft, context.Cause(ctx))
	}
}

// result comes back at the very moment of a schedule.
func (r *requests) result(s decision.Schedule) reconcile.Result {
	var result reconcile.Result
	if s.Priority != 0 {
		result.Priority = &s.Priority
	}
	if !s.At.IsZero() {
		result.RequeueAfter = max(s.At.Sub(r.Clock.Now()), time.Nanosecond)
	}
	return result
}

// sooner moves a schedule up for a request that waits for something that is not
// watched. The intervals grow; the first that would come after the schedule does not
// count.
func (r *requests) sooner(key types.NamespacedName, next decision.Schedule) decision.Schedule {
	at := r.Clock.Now().Add(r.waits.When(key))
	if at.Before(next.At) {
		return decision.Schedule{At: at}
	}
	return next
}
