package binding

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// The rights of a kind in the places where it binds: bind on exactly the roles that may be
// bound there, and nothing that would reach another.
var (
	_ extension.NamespaceEntitled = (*admitted)(nil)
	_ extension.ClusterEntitled   = (*admitted)(nil)
	_ extension.NamespaceEntitled = (*bindings)(nil)
	_ extension.ClusterEntitled   = (*bindings)(nil)
)

var ourGroup, rbacGroup, authorizationGroup = []string{v1alpha1.GroupVersion.Group}, []string{rbacv1.GroupName}, []string{"authorization.k8s.io"}

var rule = controller.Rule

func bind(resource string, names []string) []rbacv1.PolicyRule {
	if len(names) == 0 {
		return nil // a rule without names would be one for all
	}
	return []rbacv1.PolicyRule{{APIGroups: rbacGroup, Resources: []string{resource}, ResourceNames: names, Verbs: []string{"bind"}}}
}

// NamespaceRights implements [extension.NamespaceEntitled]: what admits asks who may bind.
func (a *admitted) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rights := map[string][]rbacv1.PolicyRule{}
	for namespace := range a.list.namespaces {
		rights[namespace] = []rbacv1.PolicyRule{rule(authorizationGroup, []string{"localsubjectaccessreviews"}, "create")}
	}
	return rights
}

// ClusterRights implements [extension.ClusterEntitled].
func (a *admitted) ClusterRights() []rbacv1.PolicyRule {
	if len(a.list.clusterWide) == 0 {
		return nil
	}
	return []rbacv1.PolicyRule{rule(authorizationGroup, []string{"subjectaccessreviews"}, "create")}
}

// NamespaceRights implements [extension.NamespaceEntitled]: what a binding in a namespace
// takes. bind is never in a ClusterRole for their sake: it would be for the role of that name
// everywhere.
func (r *bindings) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rights := map[string][]rbacv1.PolicyRule{}
	events := rule([]string{"events.k8s.io"}, []string{"events"}, "create", "patch")
	if r.kind.name == inCluster.name {
		rights[metav1.NamespaceDefault] = []rbacv1.PolicyRule{events} // where those about cluster-scoped objects are
		return rights
	}
	for namespace, in := range r.list.namespaces {
		rights[namespace] = slices.Concat(ofKind(r.kind, "rolebindings"), []rbacv1.PolicyRule{
			rule(rbacGroup, []string{"roles"}, "get", "list", "watch"),
			rule(authorizationGroup, []string{"localsubjectaccessreviews"}, "create"),
			events,
		}, bind("roles", in.roles), bind("clusterroles", in.clusterRoles))
	}
	return rights
}

// ClusterRights implements [extension.ClusterEntitled]: to see when a ClusterRole is made
// again, and what a binding in the whole cluster takes.
func (r *bindings) ClusterRights() []rbacv1.PolicyRule {
	var rights []rbacv1.PolicyRule
	if r.list.hasClusterRoles() {
		rights = append(rights, rule(rbacGroup, []string{"clusterroles"}, "get", "list", "watch"))
	}
	if r.kind.name != inCluster.name {
		return rights
	}
	return slices.Concat(rights, ofKind(r.kind, "clusterrolebindings"), []rbacv1.PolicyRule{
		rule(authorizationGroup, []string{"subjectaccessreviews"}, "create"),
	}, bind("clusterroles", r.list.clusterWide))
}

// ofKind are the rights on transient bindings and bindings. To patch takes finalizers
// away, which would keep a binding after its end.
func ofKind(k kind, bindings string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(ourGroup, []string{k.resource}, "get", "list", "watch", "delete"),
		rule(ourGroup, []string{k.resource + "/status"}, "patch"),
		rule(rbacGroup, []string{bindings}, "get", "list", "watch", "create", "patch", "delete"),
	}
}
