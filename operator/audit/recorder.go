package audit

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// Recorder keeps what other extensions decide and do, and records no acts of its own. It is for
// a program that runs beside one with [Audit], which also protects the AuditEvents, and
// deletes them in the end. Make one with [NewRecorder].
type Recorder struct{ options Options }

var _ extension.Composite = (*Recorder)(nil)

// NewRecorder returns the extension. Of the options it uses Sinks, Required and ClusterName.
func NewRecorder(options Options) *Recorder { return &Recorder{options} }

// Parts implements [extension.Composite].
func (r *Recorder) Parts(mgr extension.Manager) ([]any, error) {
	auditor, err := newAuditor(r.options, mgr.GetNamespaces())
	if err != nil {
		return nil, fmt.Errorf("audit options: %w", err)
	}
	return []any{&recorder{auditor}}, nil
}

// recorder keeps what other extensions decide and do, in the same sinks as the acts.
type recorder struct{ *auditor }

var (
	_ extension.Recorder        = (*recorder)(nil)
	_ extension.Hosted          = (*recorder)(nil)
	_ extension.Entitled        = (*recorder)(nil)
	_ extension.ClusterEntitled = (*recorder)(nil)
)

// Rights implements [extension.Entitled]: what the sinks need.
func (r *recorder) Rights() []rbacv1.PolicyRule {
	if r.beyondNamespaces() {
		return nil
	}
	return r.options.sinkRights()
}

// ClusterRights implements [extension.ClusterEntitled].
func (r *recorder) ClusterRights() []rbacv1.PolicyRule {
	rights := r.options.sinkClusterRights()
	if r.beyondNamespaces() {
		rights = append(rights, r.options.sinkRights()...)
	}
	return rights
}

// Record implements [extension.Recorder]. The error says that a Closed sink could not take
// the record.
func (r *recorder) Record(ctx context.Context, of extension.Record) error {
	record := &v1alpha1.AuditRecord{
		ID: of.ID, Way: v1alpha1.WayDecision, Verb: of.Action, Namespace: of.Object.Namespace,
		User:   act.UserOf(of.User),
		Object: &v1alpha1.AuditObject{Kind: of.Object.Kind, Name: of.Object.Name, UID: of.Object.UID},
		Pod:    of.Pod.Name, PodUID: of.Pod.UID, Decision: v1alpha1.AuditAllowed, Reason: of.Reason,
	}
	if of.Denied {
		record.Decision = v1alpha1.AuditDenied
	}
	if kind := of.Object.Kind; kind == "PodAccessRequest" || kind == "ExecAccessRequest" || kind == "RoleAccessRequest" {
		record.AccessRequest = &v1alpha1.AuditAccessRequest{Kind: kind, Name: of.Object.Name, UID: of.Object.UID}
	}
	act.Bound(record)
	refusal := r.pipeline.keep(ctx, record)
	records.WithLabelValues(string(record.Way), string(record.Decision)).Inc()
	return refusal
}
