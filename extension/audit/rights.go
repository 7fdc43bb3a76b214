package audit

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
)

// Rights implements extension.Entitled: to read the Pod of an act, and what the
// sinks need.
func (a *auditor) Rights() []rbacv1.PolicyRule {
	rights := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}
	for _, o := range a.sinks {
		rights = append(rights, extension.RightsOf(o.Sink)...)
	}
	return rights
}

// Rights implements extension.Entitled.
func (*eventSink) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}}}
}

// Rights implements extension.Entitled. AuditEvents are cluster-scoped: the rights
// must be given by a ClusterRole.
func (*objectSink) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents"}, Verbs: []string{"create", "get", "list", "watch", "delete"}},
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents/status"}, Verbs: []string{"patch"}},
	}
}
