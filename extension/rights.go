package extension

import rbacv1 "k8s.io/api/rbac/v1"

// Entitled is what an extension of any form implements to say which rights on the
// cluster it needs, besides those that the manager needs for its part. The
// command `manifests` gives them to the process that serves: in the manager's
// namespace option by a Role, or everywhere by a ClusterRole if there is none.
type Entitled interface {
	Rights() []rbacv1.PolicyRule
}

// ClusterEntitled is what an extension implements, besides or instead, that needs
// rights beyond the manager's namespace: on what is in no namespace, or in every
// one. They are given by a ClusterRole in any case.
type ClusterEntitled interface {
	ClusterRights() []rbacv1.PolicyRule
}

// RightsOf returns the rights that an extension says it needs: what is [Entitled],
// and a [Handler] of it.
func RightsOf(e any) []rbacv1.PolicyRule {
	if a, ok := e.(*Handler); ok {
		return RightsOf(a.handler)
	}
	if entitled, ok := e.(Entitled); ok {
		return entitled.Rights()
	}
	return nil
}

// ClusterRightsOf returns the rights that an extension says it needs beyond the
// manager's namespace: what is [ClusterEntitled], and a [Handler] of it.
func ClusterRightsOf(e any) []rbacv1.PolicyRule {
	if a, ok := e.(*Handler); ok {
		return ClusterRightsOf(a.handler)
	}
	if entitled, ok := e.(ClusterEntitled); ok {
		return entitled.ClusterRights()
	}
	return nil
}
