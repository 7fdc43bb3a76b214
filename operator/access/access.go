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
// The parts below internal decide about access. None of them knows this package, or a part
// that comes later here:
//
//   - grant: the kinds of access, and what a request gets.
//   - rules: what is allowed, and why something is refused.
//   - kube: the connection to the cluster.
//   - check: asking the operator's checks.
//   - facts: reading what there is to know about a request.
//   - decision: what follows from the facts.
//   - admission: the handlers of admissions, apart from facts and decision.
//
// command, pod and workload make access commands and access Pods, and find targets.
//
// This package has the controllers, which do what was decided. Read the code in this
// order. Package admission admits a request. enqueue (queue.go) gives it its place in the
// queue, from which Reconcile takes it (reconciler.go). [facts.Reader] gathers the facts,
// [decision.Of] says what follows from them, and apply (apply.go) does it: the end as well
// as the grant (grant.go, networkpolicy.go). Status and Events (status.go), records
// (records.go) and notifications (notify.go) tell what it did. Remove (remove.go), which an
// uninstall calls, decides and applies in the same way.
package access

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/operator/access/internal/admission"
	"github.com/admitkit/admitkit/operator/access/internal/check"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/egress"
)

// Options are the options of New; the zero value is useful in a manager that watches one
// namespace.
type Options struct {
	// Namespaces are those in which access is granted, or [AllNamespaces] alone. They
	// cannot be the manager's own, nor the control plane's. Default: the
	// watched namespaces; required if every namespace is watched.
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
type Access struct {
	entitled
	options Options
	shared  *shared
}

// entitled says what every part needs.
type entitled interface {
	extension.Entitled
	extension.NamespaceEntitled
	extension.ClusterEntitled
}

// shared is what the controllers have in common.
type shared struct {
	*kube.Connection
	keep     facts.Retention
	workers  int
	sessions Sessions
	checks   *check.Queue
	// notifier is nil without Notifications.
	notifier *notifier
	// told has the IDs of the last records.
	told *lru.Cache
}

// New returns the extension.
func New(options Options) *Access {
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.Workers == 0 {
		options.Workers = DefaultWorkers
	}
	common := &shared{
		Connection: &kube.Connection{}, keep: facts.Retention{Keep: options.Retention, WarnBefore: options.WarnBefore}, workers: options.Workers, sessions: options.Sessions, told: lru.New(toldRecords),
	}
	return &Access{entitled: common, options: options, shared: common}
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
	common := a.shared
	if a.options.Notifications.URL != "" {
		common.notifier = newNotifier(a.options.Notifications)
		if err := common.notifier.sender.Validate(); err != nil {
			return nil, fmt.Errorf("access options: Notifications: %w", err)
		}
	}
	var err error
	if common.Settings, err = a.settings(mgr); err != nil {
		return nil, fmt.Errorf("access options: %w", err)
	}
	common.checks = check.NewQueue(common.Connection, endpointsOf(a.options.Checks))
	all := admission.Parts(common.Connection)
	for _, kind := range grant.Kinds {
		all = append(all, newRequests(common, kind), newTemplates(common, kind))
	}
	return all, nil
}

// settings are what the options say to every part.
func (a *Access) settings(mgr extension.Manager) (s kube.Settings, err error) {
	o := a.options
	s = kube.Settings{SingleUse: o.SingleUse, Sessions: o.Sessions, Egress: o.Egress, Clock: o.Clock}
	if s.Clock == nil {
		s.Clock = mgr.GetClock()
	}
	for i := range o.Checks {
		s.CheckNames = append(s.CheckNames, o.Checks[i].Name)
	}
	if s.Places, err = rules.NewNamespaces(o.Namespaces, mgr); err != nil {
		return s, err
	}
	s.Roles, err = rules.NewRoles(o.Roles, o.ClusterRoles, s.Places)
	return s, err
}

// AllNamespaces stands, alone in Options.Namespaces, for every namespace but those of
// the control plane and of admitkit itself.
const AllNamespaces = rules.AllNamespaces

// Sessions knows in which Pods sessions are recorded, and so can be ended. The process that
// ends them finds the grant by its record, and the end by the request.
type Sessions interface {
	// CannotEnd says why sessions in a Pod cannot be ended, and what to do; "" if they can.
	// It reads with the reader of the reconcilers.
	CannotEnd(ctx context.Context, reader client.Reader, pod *corev1.Pod) (why string, err error)
	// ReaderRights are the rights in the cluster that the reader needs for that.
	ReaderRights() []rbacv1.PolicyRule
}
