package auditevent

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// Parts implements [extension.Composite]: validators that protect AuditEvents, and
// the controller that deletes them in the end.
func (e *events) Parts(extension.Manager) ([]any, error) {
	return append(e.guards(), &reaper{events: e}), nil
}

// guards returns the validators that protect AuditEvents from changes and early
// deletion. RBAC decides who may create one.
func (e *events) guards() []any {
	update, remove := admissionregistrationv1.Update, admissionregistrationv1.Delete
	group, version := v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version
	return []any{
		extension.Validating(&eventGuard{e}, guarding("audit-events", slices.Concat(
			extension.Resources(group, version, []string{"auditevents"}, update, remove),
			extension.Resources(group, version, []string{"auditevents/status"}, update),
		))),
		extension.Validating(&timeGuard{e}, guarding("audit-events-time",
			extension.Resources(group, version, []string{"auditevents"}, admissionregistrationv1.Create), farFromCreation)),
		extension.Validating(&crdGuard{e}, guarding("audit-events-crd",
			slices.Concat(
				extension.Resources("apiextensions.k8s.io", "v1", []string{"customresourcedefinitions"}, update, remove),
				extension.Resources("apiextensions.k8s.io", "v1", []string{"customresourcedefinitions/status"}, update),
			), ofAuditEvents, changesSpec)),
	}
}

// guarding returns a scope in all namespaces that fails closed.
func guarding(name string, rules []admissionregistrationv1.RuleWithOperations, conditions ...admissionregistrationv1.MatchCondition) extension.Scope {
	fail := admissionregistrationv1.Fail
	return extension.Scope{Name: name, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: extension.EveryNamespace(), Rules: rules, MatchConditions: conditions}
}

// eventGuard makes AuditEvents write-once.
type eventGuard struct{ events *events }

var _ extension.Validator[*v1alpha1.AuditEvent] = (*eventGuard)(nil)

// Register connects to the cluster.
func (g *eventGuard) Register(mgr extension.Manager) error { return g.events.Register(mgr) }

// Validate refuses changes, and deletions before the end of the retention.
func (g *eventGuard) Validate(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	if req.Operation == admissionv1.Delete {
		return g.validateDeletion(ctx, event, req)
	}
	var old v1alpha1.AuditEvent
	if err := req.Old(&old); err != nil {
		return err
	}
	if req.SubResource == "status" {
		return g.validateCount(ctx, event, &old, req)
	}
	if !apiequality.Semantic.DeepEqual(withoutBookkeeping(event), withoutBookkeeping(&old)) {
		return tampered(req, event.Name, "an audit record cannot be changed, nor its labels or other metadata")
	}
	return nil
}

// withoutBookkeeping leaves out what the API server maintains.
func withoutBookkeeping(event *v1alpha1.AuditEvent) *v1alpha1.AuditEvent {
	rest := event.DeepCopy()
	rest.TypeMeta = metav1.TypeMeta{}
	rest.ManagedFields, rest.ResourceVersion, rest.Generation = nil, "", 0
	return rest
}

// validateCount lets the manager, and nobody else, count a flood upwards, and say once where
// the recording of a session is.
func (g *eventGuard) validateCount(ctx context.Context, event, old *v1alpha1.AuditEvent, req *extension.Request) error {
	if apiequality.Semantic.DeepEqual(event.Status, old.Status) {
		return nil
	}
	self, err := g.events.isManager(ctx, req.User().Username)
	if err != nil {
		return err
	}
	if !self {
		return tampered(req, event.Name, "only admitkit counts in an audit record")
	}
	if isSeal(event, old) {
		return nil
	}
	if !event.Spec.Folded || event.Status.Count < old.Status.Count {
		return tampered(req, event.Name, "a count only grows, and only in a folded AuditEvent")
	}
	return nil
}

// isSeal reports whether all that changes is that a session has its recording now, or that the
// ticket of one that has it is contested.
func isSeal(event, old *v1alpha1.AuditEvent) bool {
	want := old.Status.DeepCopy()
	if want.Session == nil {
		want.Session = event.Status.Session
	} else {
		want.Session.Contested = true
	}
	return event.Spec.Session != "" && !event.Spec.Folded && apiequality.Semantic.DeepEqual(&event.Status, want)
}

func (g *eventGuard) validateDeletion(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	user := req.User().Username
	if slices.Contains(g.events.options.DeletableBy, user) && event.Spec.Way != v1alpha1.WayCleanup {
		return g.events.recordCleanup(ctx, event, req)
	}
	end, known := g.events.end(event)
	if !known {
		return tampered(req, event.Name, "this record has no time, so admitkit keeps it: has somebody changed the CRD?")
	}
	self, err := g.events.isManager(ctx, user)
	if err != nil {
		return err
	}
	if self && !g.events.options.Clock.Now().Before(end) {
		return nil
	}
	return tampered(req, event.Name, fmt.Sprintf("an audit record is kept until %s; admitkit deletes it then", end.UTC().Format(time.RFC3339)))
}

// recordCleanup records that a user deletes an AuditEvent before its time. It refuses
// the deletion if it cannot.
func (e *events) recordCleanup(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	if req.DryRun() {
		return nil
	}
	was, user := &event.Spec, req.User()
	r := &v1alpha1.AuditRecord{
		ID: string(req.UID), Time: metav1.NewMicroTime(e.options.Clock.Now()), Way: v1alpha1.WayCleanup, Verb: "delete", Path: "auditevents/" + event.Name,
		User:     v1alpha1.AuditUser{Username: user.Username, UID: user.UID, Groups: user.Groups},
		Decision: v1alpha1.AuditAllowed,
		Reason:   fmt.Sprintf("deletes the record of %s by %s at %s", act.Describe(&was.AuditRecord), was.User.Username, was.Time.UTC().Format(time.RFC3339)),
	}
	act.Bound(r)
	flood := e.bounds.place(r)
	wait := flood.add(ctx, e, r)
	if flood.exists() {
		return nil // thousands of deletions do not wait for the count
	}
	if err := wait(); err != nil {
		return fmt.Errorf("recording who deletes AuditEvents: %w", err)
	}
	return nil
}

// timeGuard keeps the time of a record near its creation: the retention counts from the
// later of them.
type timeGuard struct{ events *events }

var _ extension.Validator[*v1alpha1.AuditEvent] = (*timeGuard)(nil)

// farFromCreation lets only records through whose times are wrong, so that recording
// does not wait for the webhook.
var farFromCreation = admissionregistrationv1.MatchCondition{
	Name: "far-from-creation",
	Expression: "!has(object.spec.time) || " +
		"timestamp(object.spec.time) > timestamp(object.metadata.creationTimestamp) + duration('1m') || " +
		"timestamp(object.spec.time) < timestamp(object.metadata.creationTimestamp) - duration('1m')",
}

// Register connects to the cluster.
func (g *timeGuard) Register(mgr extension.Manager) error { return g.events.Register(mgr) }

// Validate refuses a record whose time is far from its creation. Only the manager's may be
// late: a record can wait in a queue while the API server is slow.
func (g *timeGuard) Validate(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	self, err := g.events.isManager(ctx, req.User().Username)
	if err != nil {
		return err
	}
	created, at := event.CreationTimestamp.Time, event.Spec.Time.Time
	if self && !at.IsZero() && at.Before(created) {
		return nil
	}
	return tampered(req, event.Name, fmt.Sprintf("spec.time, %s, must be within a minute of the creation of the audit record, %s; do the clocks of admitkit and the API server differ?",
		at.UTC().Format(time.RFC3339), created.UTC().Format(time.RFC3339)))
}

func tampered(req *extension.Request, name, reason string) error {
	tampering.Inc()
	return extension.Denyf("%s of %s %s: %s", req.Operation, req.Resource.Resource, name, reason)
}
