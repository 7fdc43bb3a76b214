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

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// crdName is the name of AuditEvent's CustomResourceDefinition.
const crdName = "auditevents.admitkit.dev"

// Parts implements [extension.Composite]: validators that protect AuditEvents, and
// the controller that deletes them in the end.
func (e *events) Parts(extension.Manager) ([]any, error) {
	return append(e.guards(), &reaper{events: e}), nil
}

// guards returns the validators that protect AuditEvents from changes and early
// deletion. RBAC decides who may create one.
func (e *events) guards() []any {
	fail := admissionregistrationv1.Fail
	update, remove := admissionregistrationv1.Update, admissionregistrationv1.Delete
	group, version := v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version
	return []any{
		extension.Validating(&eventGuard{e}, extension.Scope{
			Name: "audit-events", FailurePolicy: &fail, NamespaceSelector: extension.EveryNamespace(),
			Rules: slices.Concat(
				extension.Resources(group, version, []string{"auditevents"}, update, remove),
				extension.Resources(group, version, []string{"auditevents/status"}, update),
			),
		}),
		// The objects that go with a CRD are deleted without admission.
		extension.Validating(&crdGuard{e}, extension.Scope{
			Name: "audit-events-crd", FailurePolicy: &fail, NamespaceSelector: extension.EveryNamespace(),
			Rules: extension.Resources("apiextensions.k8s.io", "v1", []string{"customresourcedefinitions"}, remove),
			MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "of-audit-events", Expression: "request.name == '" + crdName + "'"},
			},
		}),
	}
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

// validateCount lets the manager, and nobody else, count a flood upwards.
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
	if !event.Spec.Folded || event.Status.Count < old.Status.Count {
		return tampered(req, event.Name, "a count only grows, and only in a folded AuditEvent")
	}
	return nil
}

func (g *eventGuard) validateDeletion(ctx context.Context, event *v1alpha1.AuditEvent, req *extension.Request) error {
	user := req.User().Username
	if slices.Contains(g.events.options.DeletableBy, user) {
		return nil
	}
	end := g.events.end(event)
	self, err := g.events.isManager(ctx, user)
	if err != nil {
		return err
	}
	if self && !g.events.options.Clock.Now().Before(end) {
		return nil
	}
	return tampered(req, event.Name, fmt.Sprintf("an audit record is kept until %s; admitkit deletes it then", end.UTC().Format(time.RFC3339)))
}

// crdGuard protects the CRD.
type crdGuard struct{ events *events }

var _ extension.Validator[*metav1.PartialObjectMetadata] = (*crdGuard)(nil)

// Validate refuses to delete the CRD, which would delete all records.
func (g *crdGuard) Validate(_ context.Context, crd *metav1.PartialObjectMetadata, req *extension.Request) error {
	if crd.Name != crdName && req.Name != crdName || slices.Contains(g.events.options.DeletableBy, req.User().Username) {
		return nil
	}
	return tampered(req, crdName, "this would delete every audit record; unregister the audit webhooks first, which the API server's own audit log records")
}

func tampered(req *extension.Request, name, reason string) error {
	tampering.Inc()
	return extension.Denyf("%s of %s %s: %s", req.Operation, req.Resource.Resource, name, reason)
}
