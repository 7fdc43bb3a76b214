package hook

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
)

var (
	_ extension.NamespaceEntitled = (*part)(nil)
	_ extension.AggregateEntitled = (*part)(nil)
)

// NamespaceRights implements [extension.NamespaceEntitled]: what controllers refer to.
func (p *part) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rights := map[string][]rbacv1.PolicyRule{}
	for _, namespace := range p.hooks.options.Namespaces {
		rights[namespace] = []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"get", "list", "watch"}},
		}
	}
	return rights
}

// AggregateLabel implements [extension.AggregateEntitled]: what hooks are about, the authors
// of controllers grant.
func (p *part) AggregateLabel() string { return LabelAggregate }
