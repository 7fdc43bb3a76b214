package access

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
)

var (
	_ entitled                    = (*shared)(nil)
	_ extension.Entitled          = (*requests)(nil)
	_ extension.NamespaceEntitled = (*requests)(nil)
	_ extension.ClusterEntitled   = (*requests)(nil)
)

// Rights implements [extension.Entitled]: what the reconcilers need.
func (r *requests) Rights() []rbacv1.PolicyRule {
	return r.Places.WatchedRules(slices.Concat(kube.ToGrant(), r.toHold()))
}

// NamespaceRights implements [extension.NamespaceEntitled].
func (r *requests) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rules, bind := r.Places.NamedRules(slices.Concat(kube.ToGrant(), r.toHold())), r.toBind()
	for _, namespace := range r.Places.Names() {
		rules[namespace] = slices.Concat(rules[namespace], bind.BindRules(namespace))
	}
	if r.Places.All() {
		rules = bind.Namespaced()
	}
	if !r.kind.MakesPod {
		return rules
	}
	for namespace, more := range r.Egress.RightsElsewhere() {
		if rules == nil {
			rules = map[string][]rbacv1.PolicyRule{}
		}
		rules[namespace] = slices.Concat(rules[namespace], more)
	}
	return rules
}

// ClusterRights implements [extension.ClusterEntitled].
func (r *requests) ClusterRights() []rbacv1.PolicyRule {
	bind := r.toBind()
	var sessions []rbacv1.PolicyRule
	if r.sessions != nil && !r.kind.MakesPod && !r.kind.GivesRole {
		sessions = r.sessions.ReaderRights()
	}
	return slices.Concat(bind.WatchRules(), sessions, r.Places.AllRules(slices.Concat(kube.ToGrant(), r.toHold(), bind.BindClusterRules())))
}

// toBind are the roles that this kind of access binds.
func (r *requests) toBind() rules.Roles {
	if !r.kind.GivesRole {
		return rules.Roles{}
	}
	return r.Roles
}

// toHold are the rights to hold access Pods to their egress, where they are.
func (r *requests) toHold() []rbacv1.PolicyRule {
	if !r.kind.MakesPod {
		return nil
	}
	return r.Egress.Rights("delete")
}
