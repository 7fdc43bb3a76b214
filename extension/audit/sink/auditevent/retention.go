package auditevent

import (
	"context"
	"fmt"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
)

// reaper deletes each AuditEvent at the end of its retention, in the replica
// that leads.
type reaper struct {
	events *events
	cached client.Reader
	pace   *rate.Limiter
}

var _ extension.Reconciler = (*reaper)(nil)

// Register watches AuditEvents in a cache of its own, which keeps only their
// times.
func (r *reaper) Register(mgr extension.Manager) error {
	if err := r.events.Register(mgr); err != nil {
		return err
	}
	own, err := cluster.New(mgr, cluster.Options{Name: "audit-retention", Scheme: scheme, ByObject: map[client.Object]cache.ByObject{
		&v1alpha1.AuditEvent{}: {Transform: trimEvent},
	}})
	if err != nil {
		return err
	}
	r.cached = own.GetCache()
	perSecond := r.events.options.DeletionsPerSecond
	r.pace = rate.NewLimiter(rate.Limit(perSecond), perSecond)
	return builder.ControllerManagedBy(mgr.GetKubeManager()).Named("audit-retention").
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		WatchesRawSource(source.Kind(own.GetCache(), &v1alpha1.AuditEvent{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.AuditEvent]{})).
		Complete(r)
}

// trimEvent keeps what the end of the retention depends on.
func trimEvent(object any) (any, error) {
	event, ok := object.(*v1alpha1.AuditEvent)
	if !ok {
		return object, nil
	}
	trimmed := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: event.Name, UID: event.UID, ResourceVersion: event.ResourceVersion}}
	trimmed.Spec.Time = event.Spec.Time
	trimmed.Status.LastTime = event.Status.LastTime
	return trimmed, nil
}

// Reconcile deletes an AuditEvent at the end of its retention. Before, it asks to be
// called again at that moment.
func (r *reaper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var event v1alpha1.AuditEvent
	if err := r.cached.Get(ctx, req.NamespacedName, &event); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	end := r.events.end(&event)
	if left := end.Sub(r.events.options.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if err := r.pace.Wait(ctx); err != nil {
		return reconcile.Result{}, err
	}
	uid := event.UID
	if err := r.events.client.Delete(ctx, &event, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("deleting AuditEvent %s: %w", event.Name, err)
	}
	reaped.Inc()
	retentionLateness.Observe(r.events.options.Clock.Since(end).Seconds())
	return reconcile.Result{}, nil
}
