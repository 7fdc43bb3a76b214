package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// crdName is the name of AuditEvent's CustomResourceDefinition.
const crdName = "auditevents.admitkit.dev"

// guards are the validators that keep AuditEvents as they are. Who may create
// one is up to RBAC.
func (s *objectSink) guards() []any {
	fail := admissionregistrationv1.Fail
	update, remove := admissionregistrationv1.Update, admissionregistrationv1.Delete
	group, version := v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version
	return []any{
		extension.Validating(&eventGuard{s}, extension.Scope{
			Name: "audit-events", FailurePolicy: &fail, NamespaceSelector: EveryNamespace(),
			Rules: slices.Concat(
				extension.Resources(group, version, []string{"auditevents"}, update, remove),
				extension.Resources(group, version, []string{"auditevents/status"}, update),
			),
		}),
		// What goes with a CRD is deleted past admission.
		extension.Validating(&crdGuard{s}, extension.Scope{
			Name: "audit-events-crd", FailurePolicy: &fail, NamespaceSelector: EveryNamespace(),
			Rules: extension.Resources("apiextensions.k8s.io", "v1", []string{"customresourcedefinitions"}, remove),
			MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "of-audit-events", Expression: "request.name == '" + crdName + "'"},
			},
		}),
	}
}

// eventGuard makes AuditEvents write-once.
type eventGuard struct{ *objectSink }

var _ extension.Validator[*v1alpha1.AuditEvent] = (*eventGuard)(nil)

// Validate refuses changes, and deletions before their time.
func (g *eventGuard) Validate(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	switch {
	case req.Operation == admissionv1.Delete:
		return g.remove(ctx, event, req)
	case req.SubResource == "status":
		return g.count(ctx, event, req)
	}
	var old v1alpha1.AuditEvent
	if err := req.Old(&old); err != nil {
		return err
	}
	if !apiequality.Semantic.DeepEqual(withoutBookkeeping(event), withoutBookkeeping(&old)) {
		return tampered(req, event.Name, "an audit record cannot be changed, nor its labels or anything else of it")
	}
	return nil
}

// withoutBookkeeping leaves out what the API server keeps for itself.
func withoutBookkeeping(event *v1alpha1.AuditEvent) *v1alpha1.AuditEvent {
	rest := event.DeepCopy()
	rest.TypeMeta = metav1.TypeMeta{}
	rest.ManagedFields, rest.ResourceVersion, rest.Generation = nil, "", 0
	return rest
}

// count lets the manager count a flood, upwards.
func (g *eventGuard) count(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	var old v1alpha1.AuditEvent
	if err := req.Old(&old); err != nil {
		return err
	}
	if apiequality.Semantic.DeepEqual(event.Status, old.Status) {
		return nil
	}
	self, err := g.isSelf(ctx, req.User().Username)
	if err != nil {
		return err
	}
	if !self {
		return tampered(req, event.Name, "only admitkit counts in it")
	}
	if !event.Spec.Folded || event.Status.Count < old.Status.Count {
		return tampered(req, event.Name, "a count only grows, and only in a fold")
	}
	return nil
}

func (g *eventGuard) remove(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	user := req.User().Username
	if slices.Contains(g.options.DeletableBy, user) {
		return nil
	}
	end := g.end(event)
	self, err := g.isSelf(ctx, user)
	if err != nil {
		return err
	}
	if self && !g.options.Clock.Now().Before(end) {
		return nil
	}
	return tampered(req, event.Name, fmt.Sprintf("an audit record is kept until %s, and admitkit deletes it then", end.UTC().Format(time.RFC3339)))
}

// end returns when the retention of an AuditEvent ends.
func (s *objectSink) end(event *v1alpha1.AuditEvent) time.Time {
	last := event.Spec.Time.Time
	if event.Status.LastTime != nil && event.Status.LastTime.After(last) {
		last = event.Status.LastTime.Time
	}
	return last.Add(s.options.Retention)
}

// crdGuard keeps the CRD.
type crdGuard struct{ *objectSink }

var _ extension.Validator[*metav1.PartialObjectMetadata] = (*crdGuard)(nil)

// Validate refuses to delete the CRD, and with it all records.
func (g *crdGuard) Validate(_ context.Context, crd *metav1.PartialObjectMetadata, req *extension.Request) error {
	if crd.Name != crdName && req.Name != crdName || slices.Contains(g.options.DeletableBy, req.User().Username) {
		return nil
	}
	return tampered(req, crdName, "every audit record would go with it; unregister the audit webhooks first, which is on the record of the API server")
}

func tampered(req *extension.Request, name, reason string) error {
	tampering.Inc()
	return extension.Denyf("%s of %s %s: %s", req.Operation, req.Resource.Resource, name, reason)
}
