// Package sandbox runs work that nobody trusts: a SandboxRun becomes a Job whose Pod reaches
// only what its template names. The kinds are those of operator/api/v1alpha1.
//
//	err := mgr.AddExtension(sandbox.New(sandbox.Options{Namespaces: []string{"agents"}}))
//
// # What holds
//
//   - The Pod has no credential of Kubernetes, no right that the restricted Pod Security
//     standard forbids, and a network policy of its own before it is made.
//   - The decision about its egress is written into the status before there is a Job.
//     Neither the template nor the operator's options change it afterwards.
//   - Admission refuses policies of others that would allow the Pod more, and changes of
//     the labels by which its own policy selects it. A policy that is gone all the same
//     comes back at once, and is on record.
//   - A run that is deleted stays until its Pods are gone, and so does its policy.
//
// # How a run goes
//
// Admission admits a run. Reconcile reads the facts, the decision says what follows from
// them, and apply does it. The end of a run is written into its status first, and recorded
// once then, by [extension.Recorder]: a record that fails changes nothing of the run.
//
// # Where what is
//
// This package has what acts: the reconcilers of runs (reconciler.go, apply.go), of
// Workspaces (workspace_reconciler.go), of output (output.go), and of what proxies without a
// broker refuse (refusals.go). Its rooms are in internal,
// and each imports only rooms before it:
//
//   - conditions: what conditions say, and why an object waits.
//   - owned: names, labels and owners of what belongs to a run or a Workspace.
//   - brokerpolicy: the admission of BrokerPolicies, and what they grant.
//   - workload: the Jobs of runs and seeds, from templates.
//   - admission: the admission of runs, templates and Workspaces, and what guards their Pods.
//   - credentials: what the broker lends, in Secrets.
//   - facts: what a decision depends on.
//   - decision: what follows from the facts.
package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/admission"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
)

// Options are the options of [New]; the zero value is useful in a manager that watches one
// namespace.
type Options struct {
	// Namespaces are those in which SandboxRuns run. They cannot be the manager's own, nor
	// the control plane's. Default: the watched namespaces; required if every namespace is
	// watched.
	Namespaces []string
	// Egress says how Pods are held to the egress of their template; see [egress.Options].
	// Default: Mode is auto. Where nothing enforces network policies, runs wait, unless
	// Mode is off.
	Egress egress.Options
	// Proxy says of what the proxies of runs and of seeds are made. Default: there are none.
	Proxy ProxyOptions
	// Broker is the broker of credentials. Default: none.
	Broker BrokerOptions
	// Collector is where recorders of sessions in Pods of runs send what they record. Default: nowhere.
	Collector CollectorOptions
	// SeedImage is the image of operator/cmd/sandbox, in which the git repositories of Workspaces are fetched. Default: none, and
	// Workspaces with a seed must name an image.
	SeedImage string
	// StartTimeout is how long the work of a run has to begin, from when the run has its Workspace or its Job is to be made:
	// one that cannot be scheduled, or whose image cannot be pulled, fails then, and holds nothing any more. Default: 15 m.
	StartTimeout time.Duration
	// Interactive lets runs be Interactive. The reconcilers then read AuditEvents, to know who uses these. Default: all are
	// Batch.
	Interactive bool
	// Workers is how many runs are worked on at the same time. Default: 16.
	Workers int
	// Clock tells the time. Default: the API server's.
	Clock clock.PassiveClock
}

// Defaults of Options.
const (
	DefaultWorkers      = 16
	DefaultStartTimeout = 15 * time.Minute
)

// maxNamespaces bounds the Roles, and the watches.
const maxNamespaces = 100

// Sandbox is the extension. Make one with [New].
type Sandbox struct{ *shared }

// shared is what the parts have in common.
type shared struct {
	options Options
	// namespaces are where runs run. Parts sets them.
	namespaces []string
	// own is the manager's own namespace. Parts sets it.
	own string
}

// New returns the extension.
func New(options Options) *Sandbox {
	if options.Workers == 0 {
		options.Workers = DefaultWorkers
	}
	if options.StartTimeout == 0 {
		options.StartTimeout = DefaultStartTimeout
	}
	if options.Egress.Mode == egress.ModeNone {
		options.Egress.Mode = egress.ModeAuto
	}
	options.Broker.setDefaults()
	if options.Collector.Namespace != "" && options.Collector.Port == 0 {
		options.Collector.Port = DefaultCollectorPort
	}
	return &Sandbox{&shared{options: options}}
}

var _ extension.Composite = (*Sandbox)(nil)

// Parts implements [extension.Composite].
func (s *Sandbox) Parts(mgr extension.Manager) ([]any, error) {
	if s.options.Workers < 0 {
		return nil, fmt.Errorf("sandbox options: Workers: %d must not be negative", s.options.Workers)
	}
	if s.options.StartTimeout < time.Second {
		return nil, fmt.Errorf("sandbox options: StartTimeout: %s is less than a second", s.options.StartTimeout)
	}
	if err := s.options.Egress.Validate(); err != nil {
		return nil, fmt.Errorf("sandbox options: Egress: %w", err)
	}
	if s.options.Clock == nil {
		s.options.Clock = mgr.GetClock()
	}
	var err error
	if s.namespaces, err = namespacesOf(s.options.Namespaces, mgr); err != nil {
		return nil, fmt.Errorf("sandbox options: Namespaces: %w", err)
	}
	if err := s.options.checkBroker(s.namespaces); err != nil {
		return nil, fmt.Errorf("sandbox options: Broker: %w", err)
	}
	if err := s.options.checkProxy(); err != nil {
		return nil, fmt.Errorf("sandbox options: Proxy: %w", err)
	}
	if err := s.options.checkCollector(s.namespaces); err != nil {
		return nil, fmt.Errorf("sandbox options: Collector: %w", err)
	}
	s.own = mgr.GetWebhookNamespace()
	r := newRuns(s.shared)
	admitting := admission.Options{
		Namespaces: s.namespaces, Egress: &s.options.Egress, Interactive: s.options.Interactive,
		Broker: s.options.Broker.on(), Proxy: s.options.Proxy.on(), SeedImage: s.options.SeedImage,
	}
	parts := append(admission.Parts(admitting), r, newWorkspaces(r), newOutputs(r))
	if s.options.Proxy.on() {
		parts = append(parts, &refusals{of: r})
	}
	return parts, nil
}

// namespacesOf returns the namespaces in which runs run, sorted.
func namespacesOf(named []string, mgr extension.Manager) ([]string, error) {
	if len(named) == 0 {
		if named = mgr.GetNamespaces(); len(named) == 0 {
			return nil, errors.New("required, because the manager watches every namespace: name those in which runs may run")
		}
	}
	if len(named) > maxNamespaces {
		return nil, fmt.Errorf("%d are named, at most %d are allowed", len(named), maxNamespaces)
	}
	for _, name := range named {
		switch problems := validation.IsDNS1123Label(name); {
		case len(problems) > 0:
			return nil, fmt.Errorf("%q: %s", name, strings.Join(problems, ", "))
		case name == mgr.GetWebhookNamespace():
			return nil, fmt.Errorf("%q is the manager's own namespace: what runs there is too near to its Secrets", name)
		case name == metav1.NamespaceSystem || name == corev1.NamespaceNodeLease:
			return nil, fmt.Errorf("%q is a namespace of the control plane", name)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(named))), nil
}

// runsIn reports whether runs run in a namespace.
func (s *shared) runsIn(namespace string) bool { return slices.Contains(s.namespaces, namespace) }

// Labels of what belongs to a run or a Workspace.
const (
	// LabelRun has the name of the run.
	LabelRun = v1alpha1.LabelSandboxRun
	// LabelWorkspace has the name of the Workspace to which a volume or a seed belongs. Runs do not have
	// it, so that what selects seeds selects none of them.
	LabelWorkspace = v1alpha1.LabelWorkspace
)

// RootSecret is the empty Secret into which the reconcilers write the root of the proxies: make it in the manager's own
// namespace. They have no right to make Secrets there, by which they would get the token of every ServiceAccount in it.
func RootSecret() *corev1.Secret { return credentials.EmptyRoot() }
