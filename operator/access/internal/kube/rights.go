package kube

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Rights implements [extension.Entitled]: what every part needs, which is to read.
func (c *Connection) Rights() []rbacv1.PolicyRule { return c.Places.WatchedRules(toRead()) }

// NamespaceRights implements [extension.NamespaceEntitled].
func (c *Connection) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return c.Places.NamedRules(toRead())
}

// ClusterRights implements [extension.ClusterEntitled].
func (c *Connection) ClusterRights() []rbacv1.PolicyRule { return c.Places.AllRules(toRead()) }

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

// ToGrant are the rights of operator/docs/access.md to grant requests, with every verb that a
// template can grant. Nobody can grant what they do not hold themselves.
func ToGrant() []rbacv1.PolicyRule {
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
