package auditevent

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// deletionsPerSecond bounds the load of deletions at the end of the retention. It is far more
// than AuditEvents can come in, since more than DefaultFoldAllAfter a day are folded.
const deletionsPerSecond = 50

// reaper deletes each AuditEvent at the end of its retention, in the replica
// that leads.
type reaper struct {
	events *events
	cached client.Reader
	pace   *rate.Limiter
	log    *zap.Logger
}

var (
	_ extension.Reconciler      = (*reaper)(nil)
	_ extension.ClusterEntitled = (*reaper)(nil)
)

// ClusterRights implements [extension.ClusterEntitled]: to delete is the right of what
// reconciles alone.
func (*reaper) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents"}, Verbs: []string{"get", "list", "watch", "delete"}}}
}

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
	r.cached, r.log = own.GetCache(), mgr.GetLogger().Desugar().Named("audit")
	r.pace = rate.NewLimiter(deletionsPerSecond, deletionsPerSecond)
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
	trimmed := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{
		Name: event.Name, UID: event.UID, ResourceVersion: event.ResourceVersion, CreationTimestamp: event.CreationTimestamp,
	}}
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
	end, known := r.events.end(&event)
	if !known {
		r.log.Error("an AuditEvent has no time, so nobody deletes it: has somebody changed the CRD?", zap.String("auditEvent", event.Name))
		return reconcile.Result{}, nil
	}
	if left := end.Sub(r.events.options.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if err := r.pace.Wait(ctx); err != nil {
		return reconcile.Result{}, err
	}
	// The API server has the last word, about the record and about the time.
	var now v1alpha1.AuditEvent
	if err := r.events.client.Get(ctx, req.NamespacedName, &now); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if ahead, agree := r.events.server.agrees(); !agree {
		r.log.Error("no AuditEvent is deleted while the clocks differ", zap.Duration("apiServerAhead", ahead), zap.Duration("most", maxSkew))
		return reconcile.Result{RequeueAfter: maxSkew}, nil
	}
	if last, known := r.events.end(&now); !known || last.After(end) {
		return reconcile.Result{}, nil // the cache is about to see the change
	}
	if err := r.events.client.Delete(ctx, &now, client.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion}); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("deleting AuditEvent %s: %w", event.Name, err)
	}
	reaped.Inc()
	retentionLateness.Observe(r.events.options.Clock.Since(end).Seconds())
	return reconcile.Result{}, nil
}
