// Package auditevent is the audit sink "auditevent": each record is an
// AuditEvent object (admitkit.dev/v1alpha1) in the cluster.
//
//   - auditevent.go writes the objects;
//   - bounds.go says which records are part of a flood, flood.go counts them in an
//     object, and folding.go says how;
//   - guard.go keeps anybody from changing them, and crd.go their kind;
//   - retention.go deletes each at the end of its retention, and serverclock.go asks
//     the API server for the time.
package auditevent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

// Options are the options of [New]; the zero value is useful.
type Options struct {
	// Retention is how long an AuditEvent is kept, counted from the latest of its
	// creation, its record's time and, if it is folded, its last act. Default: 30 days.
	Retention time.Duration
	// FoldAfter is how many AuditEvents a user can cause in a namespace in a minute.
	// Further records are folded into AuditEvents that count them. Each replica counts for
	// itself. A record of more than 2 KiB counts as several. Default: 100; -1 folds
	// nothing, whatever the other bounds are.
	FoldAfter int
	// FoldUserAfter is how many AuditEvents a user can cause in a day (UTC), and
	// FoldAllAfter how many all users can. Beyond it, the records of each user in an hour
	// are folded into one. Default: 1000 and 10,000.
	FoldUserAfter, FoldAllAfter int
	// DeletableBy are the names of users who may delete AuditEvents before the end of
	// the retention, and change or delete their CRD. What they delete is recorded, and
	// nobody can delete these records before their time. Default: nobody.
	DeletableBy []string
	// Clock tells the time. Default: the real clock.
	Clock clock.PassiveClock
}

// Defaults of [Options].
const (
	DefaultRetention     = 30 * 24 * time.Hour
	DefaultFoldAfter     = 100
	DefaultFoldUserAfter = 1000
	DefaultFoldAllAfter  = 10_000
)

// scheme has AuditEvents, and the SelfSubjectReview by which the manager learns
// its name.
var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
}

// events writes AuditEvents.
type events struct {
	options Options
	bounds  *bounds
	self    cluster.Self
	server  *serverClock

	// The following are set by Register.
	client client.Client
	// reconcilerUser is as whom AuditEvents are deleted, if not as this process.
	reconcilerUser string
}

var (
	_ sink.Batching             = (*events)(nil)
	_ sink.Validated            = (*events)(nil)
	_ extension.Hosted          = (*events)(nil)
	_ extension.ClusterEntitled = (*events)(nil)
	_ extension.Composite       = (*events)(nil)
)

// New returns the sink "auditevent": each record is an AuditEvent, which nobody
// can change, or delete before the end of its retention. It needs the CRDs of
// operator/config/crd.
func New(options Options) sink.Sink {
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.FoldAfter == 0 {
		options.FoldAfter = DefaultFoldAfter
	}
	if options.FoldUserAfter == 0 {
		options.FoldUserAfter = DefaultFoldUserAfter
	}
	if options.FoldAllAfter == 0 {
		options.FoldAllAfter = DefaultFoldAllAfter
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &events{options: options, bounds: newBounds(&options), server: &serverClock{clock: options.Clock}}
}

// Name is "auditevent".
func (*events) Name() string { return "auditevent" }

// Validate implements [sink.Validated].
func (e *events) Validate() error {
	switch {
	case e.options.Retention < 0:
		return fmt.Errorf("Retention %s must be positive", e.options.Retention)
	case e.options.FoldAfter < -1:
		return fmt.Errorf("FoldAfter %d must be positive, or -1", e.options.FoldAfter)
	case e.options.FoldUserAfter < 0:
		return fmt.Errorf("FoldUserAfter %d must be positive", e.options.FoldUserAfter)
	case e.options.FoldAllAfter < 0:
		return fmt.Errorf("FoldAllAfter %d must be positive", e.options.FoldAllAfter)
	}
	return nil
}

// ClusterRights implements [extension.ClusterEntitled]: AuditEvents have no
// namespace.
func (*events) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents"}, Verbs: []string{"create"}},
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents/status"}, Verbs: []string{"patch"}},
	}
}

// Register connects to the cluster.
func (e *events) Register(mgr extension.Manager) error {
	if e.client != nil {
		return nil // several parts register it
	}
	e.reconcilerUser = mgr.GetReconcilerUser()
	var err error
	e.client, err = cluster.NewClient(mgr, scheme, e.server.listen)
	return err
}

// Write creates an AuditEvent, or counts the record in the AuditEvent of a flood.
func (e *events) Write(ctx context.Context, r *v1alpha1.AuditRecord) error { return e.Begin(ctx, r)() }

// Begin implements [sink.Batching]: the records of a flood wait for each other.
func (e *events) Begin(ctx context.Context, r *v1alpha1.AuditRecord) (wait func() error) {
	if r.DryRun {
		return func() error { return nil }
	}
	if flood := e.bounds.place(r); flood != nil {
		return flood.add(ctx, e, r)
	}
	err := e.create(ctx, r, nil)
	return func() error { return err }
}

// create creates the AuditEvent of a record, or that of a flood which begins with it.
func (e *events) create(ctx context.Context, r *v1alpha1.AuditRecord, f *flood) error {
	event := &v1alpha1.AuditEvent{
		ObjectMeta: metav1.ObjectMeta{Name: r.ID, Labels: labelsOf(r)},
		Spec:       v1alpha1.AuditEventSpec{AuditRecord: *r, Folded: f != nil},
	}
	if f != nil {
		event.Labels = labelsOf(&v1alpha1.AuditRecord{User: r.User, Namespace: f.namespace})
		event.Labels[LabelFolded] = "true"
	}
	err := e.client.Create(ctx, event)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating AuditEvent %s: %w", r.ID, err)
	}
	return nil
}

// update writes the count of a flood.
func (e *events) update(ctx context.Context, name string, status v1alpha1.AuditEventStatus) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	event := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := e.client.Status().Patch(ctx, event, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("counting in AuditEvent %s: %w", name, err)
	}
	return nil
}

// isManager reports whether a user is the manager itself, in any of its processes.
func (e *events) isManager(ctx context.Context, user string) (bool, error) {
	if e.reconcilerUser != "" && user == e.reconcilerUser {
		return true, nil
	}
	self, err := e.self.Username(ctx, e.client)
	return err == nil && user == self, err
}

// end returns when the retention of an AuditEvent ends: it counts from the latest of
// its times. Without them, as when somebody has changed the CRD, there is no end.
func (e *events) end(event *v1alpha1.AuditEvent) (end time.Time, known bool) {
	if event.CreationTimestamp.IsZero() || event.Spec.Time.IsZero() {
		return time.Time{}, false
	}
	latest := event.CreationTimestamp.Time
	for _, at := range []*metav1.MicroTime{&event.Spec.Time, event.Status.LastTime} {
		if at != nil && at.After(latest) {
			latest = at.Time
		}
	}
	return latest.Add(e.options.Retention), true
}
