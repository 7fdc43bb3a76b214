package access

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

var (
	_ extension.Entitled          = (*shared)(nil)
	_ extension.NamespaceEntitled = (*shared)(nil)
	_ extension.ClusterEntitled   = (*shared)(nil)
	_ extension.Entitled          = (*requests)(nil)
	_ extension.NamespaceEntitled = (*requests)(nil)
	_ extension.ClusterEntitled   = (*requests)(nil)
)

// Rights implements [extension.Entitled]: what every part needs, which is to read.
func (a *shared) Rights() []rbacv1.PolicyRule { return a.places.watchedRules(toRead()) }

// NamespaceRights implements [extension.NamespaceEntitled].
func (a *shared) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return a.places.namedRules(toRead())
}

// ClusterRights implements [extension.ClusterEntitled].
func (a *shared) ClusterRights() []rbacv1.PolicyRule { return a.places.allRules(toRead()) }

// Rights implements [extension.Entitled]: what the reconcilers need.
func (r *requests) Rights() []rbacv1.PolicyRule {
	return r.places.watchedRules(slices.Concat(toGrant(), r.toHold(), r.toBind().bindRules(r.places.watched)))
}

// NamespaceRights implements [extension.NamespaceEntitled].
func (r *requests) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rules, bind := r.places.namedRules(slices.Concat(toGrant(), r.toHold())), r.toBind()
	for namespace := range rules {
		rules[namespace] = slices.Concat(rules[namespace], bind.bindRules(namespace))
	}
	if r.places.all() {
		rules = bind.namespaced()
	}
	if !r.kind.makesPod {
		return rules
	}
	for namespace, more := range r.options.Egress.RightsElsewhere() {
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
	if r.options.Sessions != nil && !r.kind.makesPod && !r.kind.givesRole {
		sessions = r.options.Sessions.ReaderRights()
	}
	return slices.Concat(bind.watchRules(), sessions, r.places.allRules(slices.Concat(toGrant(), r.toHold(), bind.bindClusterRules())))
}

// toBind are the roles that this kind of access binds.
func (r *requests) toBind() grantable {
	if !r.kind.givesRole {
		return grantable{}
	}
	return r.roles
}

// toHold are the rights to hold access Pods to their egress, where they are.
func (r *requests) toHold() []rbacv1.PolicyRule {
	if !r.kind.makesPod {
		return nil
	}
	return r.options.Egress.Rights("delete")
}

var coreGroup, ourGroup = []string{""}, []string{v1alpha1.GroupVersion.Group}

var rule = controller.Rule

// toRead are the rights to admit requests and sessions.
func toRead() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(ourGroup, []string{"podaccesstemplates", "execaccesstemplates", "roleaccesstemplates"}, "get"),
		rule(ourGroup, []string{"podaccessrequests", "execaccessrequests", "roleaccessrequests", "accessdecisions"}, "get", "list", "watch"),
		rule([]string{"apps"}, []string{"deployments", "daemonsets", "statefulsets", "replicasets"}, "get"),
		rule([]string{"batch"}, []string{"jobs", "cronjobs"}, "get"),
		rule([]string{"argoproj.io"}, []string{"rollouts"}, "get"),
		rule(coreGroup, []string{"pods"}, "get", "list", "watch"),
		rule([]string{rbacv1.GroupName}, []string{"roles", "rolebindings"}, "get", "list", "watch"),
		rule([]string{"authorization.k8s.io"}, []string{"localsubjectaccessreviews"}, "create"),
	}
}

// toGrant are the rights of operator/docs/access.md to grant requests, with every verb that a
// template can grant. Nobody can grant what they do not hold themselves.
func toGrant() []rbacv1.PolicyRule {
	return slices.Concat(toRead(), []rbacv1.PolicyRule{
		rule(ourGroup, []string{"podaccesstemplates", "execaccesstemplates", "roleaccesstemplates"}, "list", "watch"),
		rule(ourGroup, []string{"podaccesstemplates/status", "execaccesstemplates/status", "roleaccesstemplates/status", "podaccessrequests/status", "execaccessrequests/status", "roleaccessrequests/status"}, "patch"),
		rule(ourGroup, []string{"podaccessrequests", "execaccessrequests", "roleaccessrequests"}, "patch", "delete"),
		rule([]string{"apps"}, []string{"deployments", "daemonsets", "statefulsets", "replicasets"}, "list", "watch"),
		rule([]string{"batch"}, []string{"jobs", "cronjobs"}, "list", "watch"),
		rule([]string{"argoproj.io"}, []string{"rollouts"}, "list", "watch"),
		rule(coreGroup, []string{"pods"}, "create", "delete"),
		rule([]string{rbacv1.GroupName}, []string{"roles", "rolebindings"}, "create", "delete"),
		rule([]string{rbacv1.GroupName}, []string{"rolebindings"}, "patch"), // takes finalizers off
		rule(coreGroup, []string{"pods/eviction"}, "create"),
		rule([]string{"events.k8s.io"}, []string{"events"}, "create", "patch"),
		rule(coreGroup, []string{"pods/exec", "pods/attach", "pods/portforward"}, "create", "get"),
		rule(coreGroup, []string{"pods/log"}, "get"),
		rule(coreGroup, []string{"pods/ephemeralcontainers"}, "get", "patch", "update"),
	})
}
