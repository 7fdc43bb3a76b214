package access

import rbacv1 "k8s.io/api/rbac/v1"

// Rights implements extension.Entitled: the rights of docs/access.md, with every verb
// that a template can grant. Nobody can grant what they do not hold themselves.
func (r *requests) Rights() []rbacv1.PolicyRule {
	rule := func(groups, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: groups, Resources: resources, Verbs: verbs}
	}
	core, ours := []string{""}, []string{"admitkit.dev"}
	return []rbacv1.PolicyRule{
		rule(ours, []string{"podaccesstemplates", "execaccesstemplates", "podaccessrequests", "execaccessrequests"}, "get", "list", "watch"),
		rule(ours, []string{"podaccesstemplates/status", "execaccesstemplates/status", "podaccessrequests/status", "execaccessrequests/status"}, "patch"),
		rule(ours, []string{"podaccessrequests", "execaccessrequests"}, "delete"),
		rule([]string{"apps"}, []string{"deployments", "daemonsets", "statefulsets", "replicasets"}, "get", "list", "watch"),
		rule([]string{"batch"}, []string{"jobs", "cronjobs"}, "get", "list", "watch"),
		rule([]string{"argoproj.io"}, []string{"rollouts"}, "get", "list", "watch"),
		rule(core, []string{"pods"}, "get", "list", "watch", "create", "delete"),
		rule([]string{rbacv1.GroupName}, []string{"roles", "rolebindings"}, "get", "list", "watch", "create", "delete"),
		rule(core, []string{"pods/eviction"}, "create"),
		rule([]string{"authorization.k8s.io"}, []string{"localsubjectaccessreviews"}, "create"),
		rule([]string{"events.k8s.io"}, []string{"events"}, "create", "patch"),
		rule(core, []string{"pods/exec", "pods/attach", "pods/portforward"}, "create", "get"),
		rule(core, []string{"pods/log"}, "get"),
		rule(core, []string{"pods/ephemeralcontainers"}, "get", "patch", "update"),
	}
}
