package sandbox

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

var (
	_ extension.NamespaceEntitled = (*admitted)(nil)
	_ extension.ClusterEntitled   = (*admitted)(nil)
)

var coreGroup, ourGroup = []string{""}, []string{v1alpha1.GroupVersion.Group}

func rule(groups, resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: groups, Resources: resources, Verbs: verbs}
}

// each returns the rules in each namespace in which runs run.
func (s *shared) each(rules ...rbacv1.PolicyRule) map[string][]rbacv1.PolicyRule {
	rights := make(map[string][]rbacv1.PolicyRule, len(s.namespaces))
	for _, namespace := range s.namespaces {
		rights[namespace] = rules
	}
	return rights
}

// NamespaceRights implements [extension.NamespaceEntitled]: what admits reads templates, asks
// who may read a prompt, and looks whether a run has Pods.
func (a *admitted) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return a.each(
		rule(ourGroup, []string{"harnesstemplates"}, "get"),
		rule(coreGroup, []string{"pods"}, "list"),
		rule([]string{"authorization.k8s.io"}, []string{"localsubjectaccessreviews"}, "create"))
}

// ClusterRights implements [extension.ClusterEntitled].
func (a *admitted) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{rule(ourGroup, []string{"clusterharnesstemplates"}, "get")}
}
