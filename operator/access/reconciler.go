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
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// requests reconciles the requests of one kind: it reads the facts about a request,
// decides, and applies the decision.
type requests struct {
	*shared
	kind kind

	// failures and waits delay the next attempt. The queue's own limiter would not
	// do: the end of access must not wait for it.
	failures, waits workqueue.TypedRateLimiter[types.NamespacedName]
	counted         liveGrants
	promises        promises
	// lastRoles has the Roles that were deleted, until it is clear why.
	lastRoles sync.Map
	// unbound has the requests whose RoleBinding this process has deleted at the end,
	// until the rest is done.
	unbound sync.Map
	// untold has the records of policies that were restored, until they are made.
	untold sync.Map
	// woken has the requests about which a check has answered.
	woken chan event.GenericEvent
}

var _ extension.Reconciler = (*requests)(nil)

func newRequests(a *shared, k kind) *requests {
	return &requests{
		shared: a, kind: k,
		failures: workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](20*time.Millisecond, time.Second),
		waits:    workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](200*time.Millisecond, 5*time.Second),
		counted:  liveGrants{kind: k.name, keys: map[types.NamespacedName]bool{}},
		promises: promises{made: map[types.NamespacedName]bool{}},
		woken:    make(chan event.GenericEvent),
	}
}

// Register makes the controller. It watches requests, templates, and what requests
// get; enqueue decides the order in which they come.
func (r *requests) Register(mgr extension.Manager) error {
	if err := r.setup(mgr); err != nil {
		return err
	}
	// Alerts watch these from zero on. Only a process that reconciles has them.
	lateness.WithLabelValues(r.kind.name)
	grants.WithLabelValues(r.kind.name)
	for _, what := range []string{egress.Deleted, egress.Changed} {
		restoredTotal.WithLabelValues(what)
	}
	keys := map[client.Object]func(context.Context, client.Object) []types.NamespacedName{
		r.kind.newRequest():        r.keyOf,
		r.kind.newTemplate():       r.waitingFor,
		&v1alpha1.AccessDecision{}: r.decidedBy,
		&rbacv1.Role{}:             r.ownerOf,
		&rbacv1.RoleBinding{}:      r.ownerOf,
	}
	if r.kind.makesPod {
		keys[&corev1.Pod{}] = r.ownerOf
	}
	maps.Copy(keys, r.watchPolicies())
	watches := map[client.Object]handler.EventHandler{}
	for object, of := range keys {
		watches[object] = r.enqueue(of)
	}
	c, err := controller.New(mgr, "access-"+r.kind.name+"-requests", r, r.options.Workers, r.cluster.GetCache(), watches)
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
	return r.checks.register(mgr, r)
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
		r.log.Warn("attempt failed", zap.String("kind", r.kind.request), zap.Stringer("request", key), zap.Duration("retry", delay), zap.Error(err))
	}
	// A moment that has passed is what failed: it must not keep the delay from growing.
	if until := next.at.Sub(r.options.Clock.Now()); until > 0 {
		delay = min(delay, until)
	}
	return reconcile.Result{RequeueAfter: delay, Priority: r.result(next).Priority}, nil
}

func (r *requests) reconcile(ctx context.Context, key types.NamespacedName) (schedule, error) {
	req, err := within(ctx, attemptTimeout, func(ctx context.Context) (v1alpha1.Request, error) { return r.find(ctx, key) })
	if err != nil {
		return schedule{}, err
	}
	now := r.options.Clock.Now()
	next, err := within(ctx, patience(req, now), func(ctx context.Context) (schedule, error) {
		facts, err := r.read(ctx, key, req, now)
		if err != nil {
			return facts.next(now), err
		}
		return r.apply(ctx, facts, decide(facts, now))
	})
	if errors.Is(err, errLeft) {
		next.priority = controller.PriorityEnd // it may be due by now
	}
	return next, err
}

// find returns a request from the cache, nil if it is gone or being deleted.
func (r *requests) find(ctx context.Context, key types.NamespacedName) (v1alpha1.Request, error) {
	req := r.kind.newRequest()
	err := r.cached.Get(ctx, key, req)
	if err != nil || !req.GetDeletionTimestamp().IsZero() {
		return nil, client.IgnoreNotFound(err)
	}
	return req, nil
}

// attemptTimeout bounds one attempt, so that an API server that does not answer
// holds a worker no longer than that.
const attemptTimeout = 10 * time.Second

// patience returns how long an attempt may take: never beyond the end of access,
// for which the next attempt is due.
func patience(req v1alpha1.Request, now time.Time) time.Duration {
	if req == nil {
		return attemptTimeout
	}
	end, err := v1alpha1.EndOf(req)
	if remaining := end.Sub(now); err == nil && remaining > 0 {
		return min(remaining, attemptTimeout)
	}
	return attemptTimeout
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
func (r *requests) result(s schedule) reconcile.Result {
	var result reconcile.Result
	if s.priority != 0 {
		result.Priority = &s.priority
	}
	if !s.at.IsZero() {
		result.RequeueAfter = max(s.at.Sub(r.options.Clock.Now()), time.Nanosecond)
	}
	return result
}

// sooner moves a schedule up for a request that waits for something that is not
// watched. The intervals grow; the first that would come after the schedule does not
// count.
func (r *requests) sooner(key types.NamespacedName, next schedule) schedule {
	at := r.options.Clock.Now().Add(r.waits.When(key))
	if at.Before(next.at) {
		return schedule{at: at}
	}
	return next
}
