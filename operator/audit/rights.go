package audit

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Rights implements [extension.Entitled]: to read the Pod of an act, and what the
// sinks need.
func (a *auditor) Rights() []rbacv1.PolicyRule {
	if a.beyondNamespaces() {
		return nil
	}
	return a.options.rights()
}

// ClusterRights implements [extension.ClusterEntitled].
func (a *auditor) ClusterRights() []rbacv1.PolicyRule {
	var rights []rbacv1.PolicyRule
	if a.beyondNamespaces() {
		rights = a.options.rights()
	}
	rights = append(rights, a.options.sinkClusterRights()...)
	if a.options.Enforcement != nil {
		rights = append(rights, right("", "get", "namespaces"))
	}
	return rights
}

// beyondNamespaces reports whether acts outside the watched namespaces are
// recorded.
func (a *auditor) beyondNamespaces() bool {
	selector := a.options.NamespaceSelector
	if selector == nil {
		return false
	}
	one := len(a.namespaces) == 1 && apiequality.Semantic.DeepEqual(selector.MatchLabels, map[string]string{corev1.LabelMetadataName: a.namespaces[0]}) && len(selector.MatchExpressions) == 0
	return !one && (len(a.namespaces) == 0 || !apiequality.Semantic.DeepEqual(selector, extension.InNamespaces(a.namespaces...)))
}

func (o *Options) rights() []rbacv1.PolicyRule {
	rights := append([]rbacv1.PolicyRule{right("", "get", "pods")}, o.sinkRights()...)
	requests := []string{"podaccessrequests", "execaccessrequests"}
	group := v1alpha1.GroupVersion.Group
	if o.Enforcement != nil || o.AccessRequests {
		rights = append(rights, right(rbacv1.GroupName, "list", "roles"), right(group, "get", requests...))
	}
	if o.Enforcement != nil {
		rights = append(rights,
			right(group, "list", append(requests, "execaccesstemplates")...),
			right(group, "patch", "podaccessrequests/status", "execaccessrequests/status"))
	}
	if o.TouchedPods != nil {
		rights = append(rights, right("", "patch", "pods/status"))
	}
	return rights
}

func (o *Options) sinkRights() (rights []rbacv1.PolicyRule) {
	for _, each := range o.Sinks {
		if entitled, ok := each.Sink.(extension.Entitled); ok {
			rights = append(rights, entitled.Rights()...)
		}
	}
	return rights
}

func (o *Options) sinkClusterRights() (rights []rbacv1.PolicyRule) {
	for _, each := range o.Sinks {
		if entitled, ok := each.Sink.(extension.ClusterEntitled); ok {
			rights = append(rights, entitled.ClusterRights()...)
		}
	}
	return rights
}

func right(group, verb string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{verb}}
}
