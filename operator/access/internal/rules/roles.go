package rules

import (
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Roles are the roles that the operator lets requests have. To bind them the
// reconcilers have the right bind on exactly these.
type Roles struct {
	// roles are the names of Roles by their namespaces; clusterRoles are the same in each
	// namespace. All are sorted.
	roles        map[string][]string
	clusterRoles []string
}

// maxGrantable bounds how many roles can be named: they become part of a Role.
const maxGrantable = 1000

// NewRoles returns the roles of the options.
func NewRoles(roles, clusterRoles []string, places Namespaces) (Roles, error) {
	g := Roles{roles: map[string][]string{}}
	if len(roles)+len(clusterRoles) > maxGrantable {
		return g, fmt.Errorf("Roles, ClusterRoles: %d roles, of at most %d", len(roles)+len(clusterRoles), maxGrantable)
	}
	for _, text := range roles {
		role, err := cluster.ParseRole(text)
		if err != nil {
			return g, fmt.Errorf("Roles: %w", err)
		}
		if !places.include(role.Namespace) {
			return g, fmt.Errorf("Roles: %q: no access is granted in namespace %s: add it to Namespaces", text, role.Namespace)
		}
		g.roles[role.Namespace] = append(g.roles[role.Namespace], role.Name)
	}
	for _, name := range clusterRoles {
		if err := cluster.CheckClusterRole(name); err != nil {
			return g, fmt.Errorf("ClusterRoles: %w", err)
		}
		g.clusterRoles = append(g.clusterRoles, name)
	}
	for namespace, names := range g.roles {
		g.roles[namespace] = slices.Compact(slices.Sorted(slices.Values(names)))
	}
	g.clusterRoles = slices.Compact(slices.Sorted(slices.Values(g.clusterRoles)))
	return g, nil
}

func (g Roles) none() bool { return len(g.roles)+len(g.clusterRoles) == 0 }

// Refuses says why a role cannot be granted in a namespace, nil if the operator names it.
func (g Roles) Refuses(namespace string, ref v1alpha1.AccessRoleRef) *Refusal {
	var flag string
	switch {
	case ref.Kind == "ClusterRole" && slices.Contains(g.clusterRoles, ref.Name), ref.Kind == "Role" && slices.Contains(g.roles[namespace], ref.Name):
		return nil
	case ref.Kind == "ClusterRole":
		flag = "--access-cluster-role=" + ref.Name + ", or access.clusterRoles of the chart"
	default:
		flag = "--access-role=" + namespace + "/" + ref.Name + ", or access.roles of the chart"
	}
	return Refuse(v1alpha1.ReasonRoleNotAllowed, "admitkit grants no %s: its operator must name that role (%s), with which admitkit gets the right to bind it and no other",
		cluster.Role(ref.RoleRef(), namespace), flag)
}

// Off refuses what is about roles while the operator names none.
func (g Roles) Off(k grant.Kind) *Refusal {
	if !k.GivesRole || !g.none() {
		return nil
	}
	return Refuse(v1alpha1.ReasonRoleNotAllowed, "admitkit grants no roles here: its operator must name those that it may (--access-role=NAMESPACE/NAME or --access-cluster-role=NAME, access.roles or access.clusterRoles of the chart)")
}

// BindRules are the rights to bind what is named, in a namespace.
func (g Roles) BindRules(namespace string) (rules []rbacv1.PolicyRule) {
	if names := g.roles[namespace]; len(names) > 0 {
		rules = append(rules, roleRule("roles", names, "bind"))
	}
	return append(rules, g.BindClusterRules()...)
}

// BindClusterRules are the rights to bind the ClusterRoles that are named.
func (g Roles) BindClusterRules() []rbacv1.PolicyRule {
	if len(g.clusterRoles) == 0 {
		return nil
	}
	return []rbacv1.PolicyRule{roleRule("clusterroles", g.clusterRoles, "bind")}
}

// roleRule is a rule for roles that are named one by one.
func roleRule(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}

// Namespaced are the rights on the Roles that are named, each in its namespace: a
// ClusterRole would let that name be bound everywhere.
func (g Roles) Namespaced() map[string][]rbacv1.PolicyRule {
	rules := make(map[string][]rbacv1.PolicyRule, len(g.roles))
	for _, namespace := range slices.Sorted(maps.Keys(g.roles)) {
		rules[namespace] = []rbacv1.PolicyRule{roleRule("roles", g.roles[namespace], "bind")}
	}
	return rules
}

// WatchRules are the rights to learn which ClusterRoles there are, and when one goes.
func (g Roles) WatchRules() []rbacv1.PolicyRule {
	if len(g.clusterRoles) == 0 {
		return nil
	}
	return []rbacv1.PolicyRule{roleRule("clusterroles", g.clusterRoles, "get", "list", "watch")}
}
