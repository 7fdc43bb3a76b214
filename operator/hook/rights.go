package hook

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
)

var (
	_ extension.NamespaceEntitled = (*reconciler)(nil)
	_ extension.AggregateEntitled = (*reconciler)(nil)
)

// NamespaceRights implements [extension.NamespaceEntitled]: what controllers refer to.
func (r *reconciler) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rights := map[string][]rbacv1.PolicyRule{}
	for _, namespace := range r.options.Namespaces {
		rights[namespace] = []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"get", "list", "watch"}},
		}
	}
	return rights
}

// AggregateLabel implements [extension.AggregateEntitled]: what hooks are about, the authors
// of controllers grant.
func (r *reconciler) AggregateLabel() string { return LabelAggregate }
