package audit

import (
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// Rights implements extension.Entitled: to read the Pod of an act, and what the
// sinks need.
func (a *auditor) Rights() []rbacv1.PolicyRule {
	if a.beyondNamespace() {
		return nil
	}
	return a.rights()
}

// ClusterRights implements extension.ClusterEntitled.
func (a *auditor) ClusterRights() []rbacv1.PolicyRule {
	var rights []rbacv1.PolicyRule
	if a.beyondNamespace() {
		rights = a.rights()
	}
	for _, o := range a.sinks {
		if entitled, ok := o.Sink.(extension.ClusterEntitled); ok {
			rights = append(rights, entitled.ClusterRights()...)
		}
	}
	if a.options.Enforcement != nil {
		rights = append(rights, right("", "get", "namespaces"))
	}
	return rights
}

// beyondNamespace: acts in other namespaces than the manager's are recorded.
func (a *auditor) beyondNamespace() bool {
	selector := a.options.NamespaceSelector
	return selector != nil && (a.options.Namespace == "" || !apiequality.Semantic.DeepEqual(selector, named(a.options.Namespace)))
}

func (a *auditor) rights() []rbacv1.PolicyRule {
	rights := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}
	for _, o := range a.sinks {
		if entitled, ok := o.Sink.(extension.Entitled); ok {
			rights = append(rights, entitled.Rights()...)
		}
	}
	requests := []string{"podaccessrequests", "execaccessrequests"}
	group := v1alpha1.GroupVersion.Group
	if a.options.Enforcement != nil || a.options.AccessRequests {
		rights = append(rights, right(rbacv1.GroupName, "list", "roles"), right(group, "get", requests...))
	}
	if a.options.Enforcement != nil {
		rights = append(rights,
			right(group, "list", append(requests, "execaccesstemplates")...),
			right(group, "patch", "podaccessrequests/status", "execaccessrequests/status"))
	}
	if a.options.TouchedPods != nil {
		rights = append(rights, right("", "patch", "pods/status"))
	}
	return rights
}

// Rights implements extension.Entitled: labelled Pods are watched and evicted.
func (e *evictor) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		right("", "get", "pods"), right("", "list", "pods"), right("", "watch", "pods"), right("", "create", "pods/eviction"),
		right("events.k8s.io", "create", "events"), right("events.k8s.io", "patch", "events"),
	}
}

func right(group, verb string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{verb}}
}

// Rights implements extension.Entitled.
func (*eventSink) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}}}
}

// ClusterRights implements extension.ClusterEntitled: AuditEvents are in no
// namespace.
func (*objectSink) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents"}, Verbs: []string{"create", "get", "list", "watch", "delete"}},
		{APIGroups: []string{"admitkit.dev"}, Resources: []string{"auditevents/status"}, Verbs: []string{"patch"}},
	}
}
