package extension

import rbacv1 "k8s.io/api/rbac/v1"

// Entitled is implemented by an extension of any form, or by a part of one, that needs
// rights on the cluster besides those of the manager. The command `manifests` grants
// them by a Role in the watched namespace (the manager's Namespace option), or by a
// ClusterRole if that is empty.
//
// Who gets them depends on the form. What answers admissions, and a Watcher that runs in
// every replica, give theirs to the servers. A [Reconciler] and any other [Watcher] give
// theirs to the process that reconciles. A [Composite] gives its own rights to both, so
// let each part ask for what it needs itself: servers can be reached from outside, and
// should hold little.
type Entitled interface {
	Rights() []rbacv1.PolicyRule
}

// NamespaceEntitled is implemented, besides [Entitled] or instead of it, by an extension
// that needs rights in namespaces of its own choice. A Role in each grants them.
type NamespaceEntitled interface {
	NamespaceRights() map[string][]rbacv1.PolicyRule
}

// ClusterEntitled is implemented, besides [Entitled] or instead of it, by an
// extension that needs rights beyond the watched namespace: on cluster-scoped
// resources, or in every namespace. A ClusterRole grants them in any case.
type ClusterEntitled interface {
	ClusterRights() []rbacv1.PolicyRule
}
