package audit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

// Options are the options of [New]; the zero value is useful.
type Options struct {
	// Sinks are where records go. Default: sink.NewLog and sink.NewEvent.
	Sinks []SinkOptions
	// Required makes the default sinks Closed. With Sinks it is an error: each
	// of them has a failure policy of its own.
	Required bool
	// NamespaceSelector selects the namespaces. Default: the watched
	// namespace, or, if there is none, all namespaces except those that a webhook
	// with failure policy Fail leaves out. With extension.EveryNamespace the
	// cluster still starts, because no Pod that a controller creates waits for the
	// audit webhooks. But while a Closed sink or every manager is down, nobody can
	// exec anywhere. Sessions through nodes/proxy have no namespace, and are always
	// recorded, unless WithoutNodeProxy is set.
	NamespaceSelector *metav1.LabelSelector
	// ClusterName is the name of the cluster, which every record then has as its field
	// cluster, so that records of many clusters can be kept in one place. It has at most
	// 253 printable ASCII characters without spaces. Default: none.
	ClusterName string
	// Redact are patterns (package regexp) of the names of flags and variables
	// whose values are secret, in upper or lower case. Default: [DefaultRedact].
	// An empty list that is not nil redacts nothing.
	Redact []string
	// AccessRequests makes the record name the access request that covers an act,
	// even where enforcement is off. It costs a read in each act. Default: only
	// where enforcement is on.
	AccessRequests bool
	// ImageUpdaters are the names of users whose changes of a Pod's images are no
	// acts: neither recorded nor subject to enforcement. Name the service accounts of
	// controllers that update Pods in place: system:serviceaccount:NAMESPACE:NAME.
	// Controllers of workloads create new Pods instead, and need not be named.
	// Default: nobody.
	ImageUpdaters []string
	// WithoutNodeProxy leaves nodes/proxy out of the webhooks, for platforms that let no
	// webhook match nodes. A session through it is then neither recorded nor, with
	// Enforcement, refused. Default: false.
	WithoutNodeProxy bool
	// Enforcement makes sessions need an access request. It applies in the
	// watched namespaces, or everywhere if there are none. Default: they do not.
	Enforcement *Enforcement
	// TouchedPods says what happens to Pods after interactive sessions, in the
	// same namespaces. Default: nothing.
	TouchedPods *TouchedPods
	// Clock tells the time. Default: the real clock, and the API server's for whether
	// access is over.
	Clock clock.Clock
}

// SinkOptions say how a sink is used.
type SinkOptions struct {
	// Sink is the sink. There is no default.
	Sink sink.Sink
	// FailurePolicy says what happens to an act when the sink cannot take its
	// record. Default: Open.
	FailurePolicy FailurePolicy
	// Timeout is how long writing a record may take. Default: 2 s; at most 8 s,
	// so that the answer reaches the API server within its 10 s.
	Timeout time.Duration
	// QueueLength is how many records may wait for an Open sink. Further records
	// are lost. Default: 1000.
	QueueLength int
}

// FailurePolicy says what happens to an act when a sink cannot take its record.
type FailurePolicy string

// The failure policies of a sink.
const (
	// Open lets the act through. The loss is counted and logged.
	Open FailurePolicy = "Open"
	// Closed refuses the act with a message. While no manager runs, every act is
	// refused.
	Closed FailurePolicy = "Closed"
)

// Defaults and limits of [SinkOptions].
const (
	DefaultTimeout     = 2 * time.Second
	MaxTimeout         = 8 * time.Second
	DefaultQueueLength = 1000
)

// DefaultRedact are the default patterns of [Options].Redact.
var DefaultRedact = redact.Default

// clusterName allows what clouds name clusters: ARNs and resource names too.
var clusterName = regexp.MustCompile(`^[!-~]{0,253}$`)

// withDefaults returns valid options for a manager of this namespace.
func (o Options) withDefaults(namespaces []string) (Options, error) {
	if o.Required && o.Sinks != nil {
		return o, errors.New("options Required and Sinks exclude each other: set FailurePolicy of a sink to Closed")
	}
	if o.Sinks == nil {
		policy := Open
		if o.Required {
			policy = Closed
		}
		o.Sinks = []SinkOptions{{Sink: sink.NewLog(), FailurePolicy: policy}, {Sink: sink.NewEvent(), FailurePolicy: policy}}
	}
	if o.Redact == nil {
		o.Redact = DefaultRedact
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if !clusterName.MatchString(o.ClusterName) {
		return o, fmt.Errorf("ClusterName %.60q (%d bytes): it must have at most 253 printable ASCII characters, and no spaces", o.ClusterName, len(o.ClusterName))
	}
	if i := slices.Index(o.ImageUpdaters, ""); i >= 0 {
		return o, fmt.Errorf("ImageUpdaters[%d] is empty: it must be the name of a user", i)
	}
	if err := o.setRules(namespaces); err != nil {
		return o, err
	}
	return o, o.setSinks()
}

// setRules checks the options of enforcement and of touched Pods, and sets their
// defaults.
func (o *Options) setRules(namespaces []string) error {
	if o.Enforcement != nil {
		rules := o.Enforcement.options()
		if mode := o.Enforcement.Mode; !slices.Contains([]extension.Mode{"", extension.Enforce, extension.Warn, extension.Observe}, mode) {
			return fmt.Errorf("Enforcement.Mode: %q: must be Enforce, Warn or Observe", mode)
		}
		if err := rules.Validate(); err != nil {
			return fmt.Errorf("Enforcement.%w", err)
		}
		if len(namespaces) > 0 && o.NamespaceSelector == nil {
			o.NamespaceSelector = extension.InNamespaces(namespaces...)
		}
	}
	if o.TouchedPods != nil {
		touched, err := o.TouchedPods.options().WithDefaults()
		if err != nil {
			return fmt.Errorf("TouchedPods.%w", err)
		}
		o.TouchedPods = (*TouchedPods)(&touched)
	}
	return nil
}

// setSinks checks the options of the sinks, and sets their defaults.
func (o *Options) setSinks() error {
	sinks := make([]SinkOptions, len(o.Sinks))
	names := map[string]bool{}
	for i, each := range o.Sinks {
		var err error
		if sinks[i], err = each.withDefaults(); err != nil {
			return fmt.Errorf("Sinks[%d]: %w", i, err)
		}
		name := each.Sink.Name()
		if names[name] {
			return fmt.Errorf("Sinks[%d]: another sink is named %q; each name must be unique", i, name)
		}
		names[name] = true
	}
	o.Sinks = sinks
	return nil
}

func (o SinkOptions) withDefaults() (SinkOptions, error) {
	if o.Sink == nil {
		return o, errors.New("Sink is missing")
	}
	name := o.Sink.Name()
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return o, fmt.Errorf("the sink's name %q: %s", name, problems[0])
	}
	if validated, ok := o.Sink.(sink.Validated); ok {
		if err := validated.Validate(); err != nil {
			return o, fmt.Errorf("sink %s: %w", name, err)
		}
	}
	if o.FailurePolicy == "" {
		o.FailurePolicy = Open
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.QueueLength == 0 {
		o.QueueLength = DefaultQueueLength
	}
	switch {
	case o.FailurePolicy != Open && o.FailurePolicy != Closed:
		return o, fmt.Errorf("FailurePolicy of sink %s is %q: it must be Open or Closed", name, o.FailurePolicy)
	case o.Timeout < 0 || o.Timeout > MaxTimeout:
		return o, fmt.Errorf("Timeout of sink %s is %s: it must be positive and at most %s", name, o.Timeout, MaxTimeout)
	case o.QueueLength < 0:
		return o, fmt.Errorf("QueueLength of sink %s is %d: it must be positive", name, o.QueueLength)
	}
	return o, nil
}
