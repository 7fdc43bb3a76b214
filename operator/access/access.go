// Package access gives engineers access to Pods, and roles, for a while: a template says who
// may ask and for how long, a request is granted within a second and ends when it
// said. The kinds are those of operator/api/v1alpha1.
//
//	err := mgr.AddExtension(access.New(access.Options{}))
//
// Three things work together, and each holds when the others fail:
//
//   - Admission writes into a request who made it, refuses what the template does
//     not allow, and later refuses sessions in access Pods whose time is over. It
//     answers in every replica.
//   - The reconcilers make the access Pod, the Role and the RoleBinding, and take
//     them away. They run in the replica that leads.
//   - Kubernetes' own RBAC decides who may exec. admitkit never allows anything
//     by itself.
//
// # What is trusted
//
// The end of access follows from the request's creation time, which only the API
// server sets, and its spec.duration and spec.revoked, which admission guards, by the
// API server's clock. The Role records which Pod was chosen, and engineers cannot
// write it. Labels, owner references and annotations of anything an engineer may write
// are only reports, and so is most of the status: no access follows from it. Four of its
// fields can take access away. That a request was approved, and when, is in the status,
// where admission lets only the manager write it, and the API server nobody change it.
//
// # How a request is granted
//
// Read the code in this order. defaulter and requestRules admit a request. enqueue
// gives it its place in the queue, from which Reconcile takes it. read gathers the
// facts, decide says what follows from them, and apply does it: the end as well as
// the grant. Remove, which an uninstall calls, decides and applies in the same way.
package access

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Options are the options of New; the zero value is useful in a manager that watches one
// namespace.
type Options struct {
	// Namespaces are those in which access is granted, or [AllNamespaces] alone. They
	// cannot be the manager's own, nor the control plane's. Default: the
	// watched namespace; required if every namespace is watched.
	Namespaces []string
	// Roles are the Roles that RoleAccessTemplates may give, NAMESPACE/NAME each, and
	// ClusterRoles the ClusterRoles, by name: in any of the Namespaces. The reconcilers get the
	// right to bind these and no others. Default: none, and no roles are given.
	Roles, ClusterRoles []string
	// Retention is how long a request whose access has ended stays as a record.
	// Default: 24 h.
	Retention time.Duration
	// Workers is how many requests of a kind are worked on at the same time.
	// Default: 16.
	Workers int
	// SingleUse says that the enforcement of the audit extension runs, which counts
	// sessions. Without it requests with singleUse are refused, since nothing would
	// limit them to one session. Default: false.
	SingleUse bool
	// Checks are the endpoints that templates may name in accessConfig.check; see
	// [ReadChecks]. Default: none.
	Checks []Check
	// Notifications are sent as CloudEvents about each step of a request, to the URL.
	// Without a Dir, 1,000 of them are queued in memory; see [Notification]. Default: none.
	Notifications deliver.EventOptions
	// Sessions says in which Pods sessions can be ended, such as operator/session.
	// Default: templates with onExpiry EndSession, or with session, are refused.
	Sessions Sessions
	// Egress says how access Pods are held to the egress of their template; see
	// [egress.Options]. Default: templates with egress are refused.
	Egress egress.Options
	// WarnBefore is how long before its end a grant is announced to end, by an Event and a
	// notification, but not sooner than in the last quarter of its time. Default: never.
	WarnBefore time.Duration
	// Clock tells the time. Default: the API server's, which also gives requests their
	// creation time.
	Clock clock.PassiveClock
}

// Defaults of Options.
const (
	DefaultRetention = 24 * time.Hour
	DefaultWorkers   = 16
)

// Access is the extension. Make one with [New].
type Access struct{ *shared }

// shared is what the parts have in common.
type shared struct {
	options Options
	// places are where requests are granted. Parts sets them.
	places namespaceSet
	// roles are those that requests can get. Parts sets them.
	roles grantable
	once  sync.Once
	err   error

	// The following are set by setup.
	log    *zap.Logger
	checks *checks
	// self knows as whom the reconcilers write.
	self *controller.Asker
	// holder holds access Pods to their egress.
	holder egress.Holder
	// notifier is nil without Notifications.
	notifier *notifier
	events   events.EventRecorder
	// recorder is nil during an uninstall. told has the IDs of the last records.
	recorder extension.Recorder
	told     *lru.Cache
	// cached reads what is ours from memory; live reads everything else, by
	// name, from the API server.
	cluster ctrlcluster.Cluster
	cached  client.Reader
	live    client.Reader
	writer  client.Client
}

// New returns the extension.
func New(options Options) *Access {
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.Workers == 0 {
		options.Workers = DefaultWorkers
	}
	return &Access{&shared{options: options}}
}

var _ extension.Composite = (*Access)(nil)

// Parts implements [extension.Composite].
func (a *Access) Parts(mgr extension.Manager) ([]any, error) {
	if a.options.Retention < 0 || a.options.Workers < 0 || a.options.WarnBefore < 0 {
		return nil, fmt.Errorf("access options: Retention %s, Workers %d and WarnBefore %s must not be negative", a.options.Retention, a.options.Workers, a.options.WarnBefore)
	}
	if err := validateChecks(a.options.Checks); err != nil {
		return nil, fmt.Errorf("access options: %w", err)
	}
	if err := a.options.Egress.Validate(); err != nil {
		return nil, fmt.Errorf("access options: Egress: %w", err)
	}
	if a.options.Notifications.URL != "" {
		a.notifier = newNotifier(a.options.Notifications)
		if err := a.notifier.sender.Validate(); err != nil {
			return nil, fmt.Errorf("access options: Notifications: %w", err)
		}
	}
	if a.options.Clock == nil {
		a.options.Clock = mgr.GetClock()
	}
	var err error
	if a.places, err = newNamespaceSet(a.options.Namespaces, mgr); err != nil {
		return nil, fmt.Errorf("access options: %w", err)
	}
	if a.roles, err = newGrantable(a.options.Roles, a.options.ClusterRoles, a.places); err != nil {
		return nil, fmt.Errorf("access options: %w", err)
	}
	parts := a.admissions()
	if a.options.Egress.On() {
		parts = append(parts, extension.Validating(&policyGuard{a.shared}, a.policyScope()))
	}
	for _, kind := range kinds {
		parts = append(parts, newRequests(a.shared, kind), newTemplates(a.shared, kind))
	}
	return parts, nil
}

// setup connects to the cluster, once for all parts.
func (a *shared) setup(mgr extension.Manager) error {
	a.once.Do(func() { a.err = a.connect(mgr) })
	return a.err
}

// connect makes a cache that holds templates, requests, and what carries our label.
func (a *shared) connect(mgr extension.Manager) error {
	scheme, err := controller.Scheme()
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{LabelManagedBy: managedBy})}
	pods := ours
	pods.Transform = cluster.TrimPod
	a.log = mgr.GetLogger().Desugar().Named("access")
	a.holder = egress.Holder{Options: &a.options.Egress, Flag: "--access-network-policy"}
	if err := a.holder.Connect(mgr, a.log); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	held := a.holder.Cache(ours)
	held[&corev1.Pod{}], held[&rbacv1.Role{}], held[&rbacv1.RoleBinding{}] = pods, ours, ours
	a.cluster, err = cluster.New(mgr, cluster.Options{Name: "access", Scheme: scheme, Namespaces: a.places.each(), ByObject: held})
	if err != nil {
		return err
	}
	a.recorder, a.told = mgr.GetRecorder(), lru.New(toldRecords)
	a.checks = newChecks(a)
	a.events = mgr.GetKubeManager().GetEventRecorder("admitkit-access")
	a.cached, a.live, a.writer = a.cluster.GetCache(), a.cluster.GetAPIReader(), a.cluster.GetClient()
	a.self = controller.NewAsker(mgr, a.writer)
	a.holder.Use(a.live, a.writer, a.options.Clock)
	if err := errors.Join(a.indexRoles(mgr.GetContext()), a.indexRequests(mgr.GetContext()), a.indexDecisions(mgr.GetContext())); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	return nil
}
