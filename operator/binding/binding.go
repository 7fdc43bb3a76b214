// Package binding has bindings that begin and end by themselves: a TransientRoleBinding is
// a RoleBinding from validFrom until validUntil, a TransientClusterRoleBinding a
// ClusterRoleBinding. The kinds are those of operator/api/v1alpha1.
//
//	err := mgr.AddExtension(binding.New(binding.Options{BindableRoles: []string{"shop/deployer"}}))
//
// # Nobody gets what the author does not have
//
//   - The operator names each role that may be bound. The manager holds bind on these names
//     alone, so that RBAC stops it at any other.
//   - Whoever makes a transient binding must hold bind on that very role, when they make it
//     and when it begins. Admission writes into the object who they are.
//   - An object can be narrowed by whoever may write it. A later end, or another subject, is
//     a new grant: who writes it must hold bind too, and becomes the author. Another role
//     the CRD refuses.
//   - It is for the role that was there. One that is deleted and made again is another.
//
// # How a binding begins and ends
//
// enqueue takes what happens, Reconcile reads the facts, decide says what follows from
// them, and apply does it. Everything follows from the spec and the clock: the status only
// reports, but for what takes rights away. At the end the binding is
// deleted first, and the status written then. A binding whose object is gone is deleted
// whoever owns it: its label and its annotation say whose it was.
package binding

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Options are the options of New. At least one role must be bindable.
type Options struct {
	// BindableRoles are the Roles that TransientRoleBindings may bind, as NAMESPACE/NAME.
	BindableRoles []string
	// BindableClusterRoles are the ClusterRoles that TransientRoleBindings in
	// Namespaces may bind.
	BindableClusterRoles []string
	// Namespaces are those in which BindableClusterRoles may be bound. They cannot be the
	// manager's own, nor the control plane's. Default: the watched namespaces; required
	// with BindableClusterRoles if every namespace is watched.
	Namespaces []string
	// BindableClusterWide are the ClusterRoles that TransientClusterRoleBindings may
	// bind. Without any of them nothing is bound in the whole cluster, and the manager has
	// no right to.
	BindableClusterWide []string
	// MaxDuration is how long a binding may exist. Default: 168 h.
	MaxDuration time.Duration
	// MaxLead is how far ahead a binding may begin, at most a year. Default: 168 h.
	MaxLead time.Duration
	// Retention is how long an object stays as a record after its end, at most a year.
	// Default: 24 h.
	Retention time.Duration
	// Workers is how many objects of a kind are worked on at the same time. Default: 16.
	Workers int
	// Clock tells the time. Default: the API server's.
	Clock clock.PassiveClock
}

// Defaults of Options.
const (
	DefaultMaxDuration = 7 * 24 * time.Hour
	DefaultMaxLead     = 7 * 24 * time.Hour
	DefaultRetention   = 24 * time.Hour
	DefaultWorkers     = 16
)

// maxAhead is the most that the operator can choose, and how long a record may be kept.
const maxAhead = 366 * 24 * time.Hour

// Binding is the extension. Make one with [New].
type Binding struct{ *shared }

// shared is what the parts have in common.
type shared struct {
	options Options
	// list has what may be bound. Parts sets it.
	list bindable
	// asker asks the API server on behalf of admissions.
	asker *controller.Asker

	// The following are set by connect, in the process that reconciles.
	once    sync.Once
	err     error
	log     *zap.Logger
	events  events.EventRecorder
	cluster ctrlcluster.Cluster
	cached  client.Reader
	live    client.Reader
	writer  client.Client
}

// New returns the extension.
func New(options Options) *Binding {
	if options.MaxDuration == 0 {
		options.MaxDuration = DefaultMaxDuration
	}
	if options.MaxLead == 0 {
		options.MaxLead = DefaultMaxLead
	}
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.Workers == 0 {
		options.Workers = DefaultWorkers
	}
	return &Binding{&shared{options: options, asker: &controller.Asker{}}}
}

var _ extension.Composite = (*Binding)(nil)

// Parts implements [extension.Composite].
func (b *Binding) Parts(mgr extension.Manager) ([]any, error) {
	if err := b.options.check(); err != nil {
		return nil, fmt.Errorf("binding options: %w", err)
	}
	if b.options.Clock == nil {
		b.options.Clock = mgr.GetClock()
	}
	var err error
	if b.list, err = newBindable(&b.options, mgr); err != nil {
		return nil, fmt.Errorf("binding options: %w", err)
	}
	parts := b.admissions()
	if len(b.list.namespaces) > 0 {
		parts = append(parts, newBindings(b.shared, inNamespace))
	}
	if len(b.list.clusterWide) > 0 {
		parts = append(parts, newBindings(b.shared, inCluster))
	}
	return parts, nil
}

func (o *Options) check() error {
	switch {
	case o.MaxDuration < time.Second:
		return fmt.Errorf("MaxDuration: %s is less than a second", o.MaxDuration)
	case o.MaxDuration > maxAhead:
		return fmt.Errorf("MaxDuration: %s is more than %s", o.MaxDuration, maxAhead)
	case o.MaxLead < 0 || o.MaxLead > maxAhead:
		return fmt.Errorf("MaxLead: %s is not from 0 to %s", o.MaxLead, maxAhead)
	case o.Retention < 0 || o.Retention > maxAhead:
		return fmt.Errorf("Retention: %s is not from 0 to %s", o.Retention, maxAhead)
	case o.Workers < 0:
		return fmt.Errorf("Workers: %d must not be negative", o.Workers)
	}
	return nil
}

// connect makes a cache that holds transient bindings, the bindings that carry our label,
// and of the roles their names and UIDs.
func (s *shared) connect(mgr extension.Manager) error {
	s.once.Do(func() { s.err = s.open(mgr) })
	return s.err
}

func (s *shared) open(mgr extension.Manager) error {
	scheme, err := controller.Scheme()
	if err != nil {
		return fmt.Errorf("binding: %w", err)
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: managedBy})}
	roles := cache.ByObject{Transform: trimRole}
	byObject := map[client.Object]cache.ByObject{&rbacv1.RoleBinding{}: ours, roleMeta("Role"): roles}
	if len(s.list.clusterWide) > 0 {
		byObject[&rbacv1.ClusterRoleBinding{}] = ours
	}
	if s.list.hasClusterRoles() {
		byObject[roleMeta("ClusterRole")] = roles
	}
	s.cluster, err = cluster.New(mgr, cluster.Options{Name: "binding", Scheme: scheme, Namespaces: s.list.each(), ByObject: byObject})
	if err != nil {
		return err
	}
	s.log = mgr.GetLogger().Desugar().Named("binding")
	s.events = mgr.GetKubeManager().GetEventRecorder("admitkit-binding")
	s.cached, s.live, s.writer = s.cluster.GetCache(), s.cluster.GetAPIReader(), s.cluster.GetClient()
	return nil
}

// trimRole leaves of a role's metadata what tells which one it is.
func trimRole(obj any) (any, error) {
	if role, ok := obj.(*metav1.PartialObjectMetadata); ok {
		role.ObjectMeta = metav1.ObjectMeta{
			Name: role.Name, Namespace: role.Namespace, UID: role.UID, ResourceVersion: role.ResourceVersion, DeletionTimestamp: role.DeletionTimestamp,
		}
	}
	return obj, nil
}

// roleMeta is the metadata of a role of this kind.
func roleMeta(kind string) *metav1.PartialObjectMetadata {
	role := &metav1.PartialObjectMetadata{}
	role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(kind))
	return role
}
