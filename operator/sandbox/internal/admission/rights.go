package admission

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

var (
	_ extension.NamespaceEntitled = (*admitted)(nil)
	_ extension.ClusterEntitled   = (*admitted)(nil)
)

// NamespaceRights implements [extension.NamespaceEntitled]: what admits reads templates, asks
// who may read a prompt, looks whether a run has Pods, and whose Pod somebody wants to enter.
func (a *admitted) NamespaceRights() map[string][]rbacv1.PolicyRule {
	ours := []string{v1alpha1.GroupVersion.Group}
	rules := []rbacv1.PolicyRule{
		controller.Rule(ours, []string{"sandboxruntemplates"}, "get"),
		controller.Rule(ours, []string{"brokerpolicies", "workspaces"}, "list"),
		controller.Rule(ours, []string{"sandboxruns"}, "get", "list"),
		controller.Rule([]string{""}, []string{"pods"}, "get", "list"),
		controller.Rule([]string{"authorization.k8s.io"}, []string{"localsubjectaccessreviews"}, "create"),
	}
	rights := make(map[string][]rbacv1.PolicyRule, len(a.Namespaces))
	for _, namespace := range a.Namespaces {
		rights[namespace] = rules
	}
	return rights
}

// ClusterRights implements [extension.ClusterEntitled].
func (a *admitted) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{controller.Rule([]string{v1alpha1.GroupVersion.Group}, []string{"clustersandboxruntemplates"}, "get")}
}
