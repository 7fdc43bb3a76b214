package extension

import rbacv1 "k8s.io/api/rbac/v1"

// Entitled is implemented by an extension of any form that needs rights on the
// cluster besides those of the manager. The command `manifests` grants them to the
// process that serves: by a Role in the watched namespace (the manager's Namespace
// option), or by a ClusterRole if that is empty.
type Entitled interface {
	Rights() []rbacv1.PolicyRule
}

// ClusterEntitled is implemented, besides [Entitled] or instead of it, by an
// extension that needs rights beyond the watched namespace: on cluster-scoped
// resources, or in every namespace. A ClusterRole grants them in any case.
type ClusterEntitled interface {
	ClusterRights() []rbacv1.PolicyRule
}
