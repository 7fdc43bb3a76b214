package audit

import rbacv1 "k8s.io/api/rbac/v1"

// Rights implements extension.Entitled: an Event on the Pod, which is read for its
// UID.
func (a *auditor) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
	}
}
