package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// leases ends leases, in the replica that leads: those of runs that have ended, those whose
// time is over, and those that somebody deletes.
type leases struct{ *service }

var _ extension.Reconciler = (*leases)(nil)

// heldFor is how often a run is looked at whose container has a credential beyond its time.
// Its end is seen at once all the same.
const heldFor = 5 * time.Minute

type retries = workqueue.TypedRateLimiter[types.NamespacedName]

// Attempts to revoke are 1 s apart, and later up to a minute.
func newRetries() retries {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Second, time.Minute)
}

// attemptTimeout bounds an attempt, so that a provider that does not answer delays few others.
const attemptTimeout = 15 * time.Second

// Register watches leases and runs, and starts the server in each replica.
func (l *leases) Register(mgr extension.Manager) error {
	own, err := l.connect(mgr)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	beginCounting()
	server, err := newServer(l.service, mgr)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	if err := mgr.GetKubeManager().Add(server); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	return builder.ControllerManagedBy(mgr.GetKubeManager()).Named("credential-leases").
		WithOptions(controller.Options{MaxConcurrentReconciles: 16}).
		WatchesRawSource(source.Kind(own, &v1alpha1.CredentialLease{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.CredentialLease]{},
			predicate.TypedGenerationChangedPredicate[*v1alpha1.CredentialLease]{})). // a deletion changes it, and note does not
		WatchesRawSource(source.Kind(own, newRun(v1alpha1.LeaseOfRun), handler.TypedEnqueueRequestsFromMapFunc(l.ofRun))).
		WatchesRawSource(source.Kind(own, newRun(v1alpha1.LeaseOfWorkspace), handler.TypedEnqueueRequestsFromMapFunc(l.ofRun))).
		Complete(l)
}

// ofRun returns the leases of a run that has ended.
func (l *leases) ofRun(ctx context.Context, object *unstructured.Unstructured) []reconcile.Request {
	var list v1alpha1.CredentialLeaseList
	err := l.cached.List(ctx, &list, client.InNamespace(l.namespace), client.MatchingLabels{labelRun: runKey(v1alpha1.LeaseKind(object.GetKind()), object.GetNamespace(), object.GetName())})
	if err != nil {
		l.log.Error("cannot list the leases of a run", zap.String("namespace", object.GetNamespace()), zap.String("run", object.GetName()), zap.Error(err))
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// Reconcile ends a lease that is to end, and otherwise asks to be called again when its time
// is over.
func (l *leases) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	lease := &v1alpha1.CredentialLease{}
	if err := l.cached.Get(ctx, req.NamespacedName, lease); err != nil {
		l.retries.Forget(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	left, err := l.attempt(ctx, lease)
	if err == nil {
		l.retries.Forget(req.NamespacedName)
		return reconcile.Result{RequeueAfter: left}, nil
	}
	after := l.retries.When(req.NamespacedName)
	if left := lease.Spec.ExpiresAt.Sub(l.clock.Now()); left > 0 {
		after = min(after, left)
	}
	l.log.Warn("a lease could not be ended", zap.String("lease", lease.Name), zap.Duration("retry", after), zap.Error(err))
	return reconcile.Result{RequeueAfter: after}, nil
}

// attempt ends a lease if that is due, and returns how long it is until it is.
func (l *leases) attempt(ctx context.Context, lease *v1alpha1.CredentialLease) (left time.Duration, err error) {
	if lease.DeletionTimestamp == nil {
		ended, err := l.runs.hasEnded(ctx, lease.Spec.Run)
		if err != nil {
			return 0, err
		}
		left := lease.Spec.ExpiresAt.Sub(l.clock.Now())
		switch {
		case !ended && left > 0:
			return left, nil
		case !ended && lease.Spec.Pod == nil && lease.Spec.Provider == v1alpha1.ProviderTokenPool:
			return heldFor, nil // it is in the container, which does not forget it
		}
		// Not if it was renewed meanwhile.
		err = l.live.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if err == nil {
			err = l.live.Get(ctx, client.ObjectKeyFromObject(lease), lease)
		}
		if err != nil {
			return 0, client.IgnoreNotFound(err)
		}
	}
	err = l.end(ctx, lease, nil, false, "its run has ended, its time is over, or somebody deleted it")
	if err == nil {
		return 0, nil
	}
	return 0, errors.Join(err, l.note(ctx, lease, err))
}

// note writes into the status why a lease is still there.
func (l *leases) note(ctx context.Context, lease *v1alpha1.CredentialLease, failure error) error {
	failedTotal.WithLabelValues(string(lease.Spec.Provider)).Inc()
	before := lease.DeepCopy()
	message := failure.Error()
	lease.Status.Attempts, lease.Status.Message = lease.Status.Attempts+1, message[:min(len(message), 1000)]
	return client.IgnoreNotFound(l.live.Status().Patch(ctx, lease, client.MergeFrom(before)))
}
