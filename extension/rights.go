package extension

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Entitled is implemented by an extension of any form, or by a part of one, that needs
// rights on the cluster besides those of the manager. The command `manifests` grants
// them by a Role in each watched namespace (the manager's Namespaces option), or by a
// ClusterRole if there are none.
//
// Rights follow a scope that names its namespaces: if the NamespaceSelector of what
// answers admissions is [InNamespaces], or has kubernetes.io/metadata.name In [...], a Role in
// each of these grants them, and nothing elsewhere. They do not follow any other selector. If
// there are watched namespaces, an extension whose scope selects more by labels, or everything, gets
// admissions where it has no rights, and `manifests` warns of it: let it name the
// namespaces, or be [NamespaceEntitled] or [ClusterEntitled], too, by which it says where it
// needs rights.
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
// extension that needs rights beyond the watched namespaces: on cluster-scoped
// resources, or in every namespace. A ClusterRole grants them in any case.
type ClusterEntitled interface {
	ClusterRights() []rbacv1.PolicyRule
}

// AggregateEntitled is implemented, besides the others or instead of them, by an extension
// whose rights depend on what its users write, so that no program knows them. Authors grant
// them: the process gets, in the whole cluster, the rules of each ClusterRole on which the
// label of this name has the value "true"
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles).
// Who may write such a ClusterRole, or what the extension acts on, is trusted with all of them.
type AggregateEntitled interface {
	AggregateLabel() string
}

// Equipped is implemented by an extension of any form, or by a part of one, that needs more
// of the Pods in which admissions are answered: a volume, or a port of its own. The command
// `manifests` calls Equip with the Pods' spec, whose first container is the program. What
// another part has added already must stay as it is. Each port of that container besides
// those of the manager is a port of the Service, too, and the NetworkPolicy lets everybody
// reach it.
type Equipped interface {
	Equip(pod *corev1.PodSpec)
}

// Reader is implemented by an extension of any form, or by a part of one, that reads the
// cluster through the cache of its manager:
//
//	func (t *tenant) Reads() []client.Object { return []client.Object{&corev1.Namespace{}} }
//
//	func (t *tenant) Register(mgr extension.Manager) error {
//		t.client = mgr.GetKubeManager().GetClient()
//		return nil
//	}
//
// Reads returns one object of each kind, which can be empty. The form of the object is that
// in which the extension reads: the Go type, which has to be in the manager's scheme, a
// *unstructured.Unstructured, or a *metav1.PartialObjectMetadata, for which the cache holds
// nothing but metadata. The last two name their kind (SetGroupVersionKind). Reads is called
// more than once, first by AddExtension.
//
// The manager fills its cache with the objects, without their managedFields, before it
// serves. Of a kind with namespaces it holds those in the watched namespaces, whatever the
// scope names. The command `manifests` grants the rights to get, list and watch them, and a
// start without these is an error. A cache is behind the API server, usually by
// milliseconds, and by as long as the connection is broken.
//
// In an admission, the client and the cache of mgr.GetKubeManager read no other kinds; that
// is an error. Elsewhere, as in a [Reconciler], they begin to cache a kind when it is first
// read, as controller-runtime does.
type Reader interface {
	Reads() []client.Object
}
