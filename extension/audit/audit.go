// Package audit records every way into a running container, once: who, where,
// what, under which grant, and what was decided.
//
//	err := mgr.AddExtension(audit.New(audit.Options{}))
//
// An act is admitted in these steps, each in a file of its own:
//
//   - ways.go reads it from the admission request, whatever way in it takes;
//   - the enforcement, if there is one, decides (decide in act.go is the seam);
//   - redact.go takes secrets out of the command;
//   - pipeline.go hands the record to the sinks: to those that are Closed before
//     the act goes on, to those that are Open behind it.
//
// # What is recorded
//
// The record is made when the API server asks for admission, after it has
// authorized the request. Another webhook may still refuse the act, and a
// container that is not running ends it at once; the record is there all the
// same. What is typed into a session is not recorded.
package audit

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// Options are the options of New; the zero value is useful.
type Options struct {
	// Sinks are where records go. Default: NewLogSink and NewEventSink.
	Sinks []SinkOptions
	// Required makes the default sinks Closed. It is an error together with
	// Sinks, each of which says that for itself.
	Required bool
	// NamespaceSelector selects the namespaces. Default: the manager's
	// namespace, or, if it has none, all but those that a webhook with failure
	// policy Fail leaves out; see EveryNamespace. Sessions through nodes/proxy
	// are in no namespace, and always recorded.
	NamespaceSelector *metav1.LabelSelector
	// Redact are patterns (package regexp) of the names of flags and variables
	// whose values are secret, whatever their case. Default: DefaultRedact. An
	// empty list that is not nil redacts nothing.
	Redact []string
	// Namespace is where Enforcement and TouchedPods apply: the same as the
	// manager's, if it has one. Default: every namespace.
	Namespace string
	// AccessRequests finds the access request that covers an act also where
	// enforcement is off, for the record. It costs a read in each act. Default:
	// only where enforcement is on.
	AccessRequests bool
	// Enforcement makes sessions need an access request. Default: they do not.
	Enforcement *Enforcement
	// TouchedPods says what happens to Pods after interactive sessions. Default:
	// nothing.
	TouchedPods *TouchedPods
	// Clock is the real one by default.
	Clock clock.Clock
}

// EveryNamespace selects every namespace without exception, kube-system and the
// manager's own included. No Pod that a controller creates waits for the audit
// webhooks, so that they can keep no cluster from starting; but while a Closed
// sink is down, or every manager, nobody can exec anywhere.
func EveryNamespace() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists},
	}}
}

// Audit is the extension. Make one with [New].
type Audit struct {
	options Options
	err     error
	auditor *auditor
}

// New returns the extension. AddExtension reports invalid options.
func New(options Options) *Audit {
	a := &Audit{}
	a.options, a.err = options.withDefaults()
	if a.err != nil {
		return a
	}
	a.auditor, a.err = newAuditor(a.options)
	return a
}

var _ extension.Composite = (*Audit)(nil)

// Parts implements extension.Composite: the auditor in each of its scopes, and
// what sinks bring along.
func (a *Audit) Parts(extension.Manager) ([]any, error) {
	if a.err != nil {
		return nil, fmt.Errorf("audit options: %w", a.err)
	}
	var parts []any
	for _, entry := range a.entries() {
		parts = append(parts, extension.Validating[runtime.Object](&gate{a.auditor, entry.enforced}, entry.Scope))
	}
	if evictor := a.auditor.evictor(); evictor != nil {
		parts = append(parts, evictor)
	}
	for _, sink := range a.options.Sinks {
		if with, ok := sink.Sink.(interface{ parts() []any }); ok {
			parts = append(parts, with.parts()...)
		}
	}
	return parts, nil
}

// failurePolicy is Fail when an act must not go on without its record, or
// without having been decided about.
func (a *Audit) failurePolicy() admissionregistrationv1.FailurePolicyType {
	for _, sink := range a.options.Sinks {
		if sink.FailurePolicy == Closed {
			return admissionregistrationv1.Fail
		}
	}
	return admissionregistrationv1.Ignore
}

func (o Options) withDefaults() (Options, error) {
	if o.Required && o.Sinks != nil {
		return o, fmt.Errorf("options Required and Sinks exclude each other: set FailurePolicy of a sink to Closed")
	}
	if o.Sinks == nil {
		policy := Open
		if o.Required {
			policy = Closed
		}
		o.Sinks = []SinkOptions{{Sink: NewLogSink(), FailurePolicy: policy}, {Sink: NewEventSink(), FailurePolicy: policy}}
	}
	if o.Redact == nil {
		o.Redact = DefaultRedact
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if err := o.setRules(); err != nil {
		return o, err
	}
	sinks := make([]SinkOptions, len(o.Sinks))
	names := map[string]bool{}
	for i, sink := range o.Sinks {
		var err error
		if sinks[i], err = sink.withDefaults(); err != nil {
			return o, fmt.Errorf("Sinks[%d]: %w", i, err)
		}
		if name := sink.Sink.Name(); names[name] {
			return o, fmt.Errorf("Sinks[%d]: a sink named %q is there already", i, name)
		}
		names[sink.Sink.Name()] = true
	}
	o.Sinks = sinks
	return o, nil
}

// auditor is the validator of every way in.
type auditor struct {
	options  Options
	redactor *Redactor
	sinks    []*outlet
	order    stripes

	log  *zap.Logger
	pods corev1client.PodsGetter

	// decide is nil without enforcement: everything is allowed.
	decide func(context.Context, *act) decision
	// admitted, if there is one, is told of each act that was let through and
	// recorded.
	admitted func(context.Context, *act)
}

func newAuditor(options Options) (*auditor, error) {
	redactor, err := NewRedactor(options.Redact...)
	if err != nil {
		return nil, fmt.Errorf("Redact: %w", err)
	}
	a := &auditor{options: options, redactor: redactor, order: newStripes()}
	for _, sink := range options.Sinks {
		a.sinks = append(a.sinks, newOutlet(sink, options.Clock))
	}
	return a, nil
}

// Register learns where to log and to read Pods, and starts the sinks. It is
// called once for each scope.
func (a *auditor) Register(mgr extension.Manager) error {
	if a.log != nil {
		return nil
	}
	clientset, err := newClientset(mgr)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	a.pods = clientset.CoreV1()
	a.log = mgr.GetLogger().Desugar().Named("audit")
	for _, o := range a.sinks {
		if err := o.register(mgr); err != nil {
			return fmt.Errorf("audit: sink %s: %w", o.Sink.Name(), err)
		}
	}
	return a.registerRules(mgr)
}

// admit decides about an act, records it, and lets it through or not. Each
// request has one act at most.
func (a *auditor) admit(ctx context.Context, obj runtime.Object, req *extension.Request, enforced bool) error {
	act, err := parse(obj, req)
	if err != nil || act == nil {
		return err
	}
	act.enforced = enforced
	a.identify(ctx, act)
	a.judge(ctx, act)
	req.AddAuditAnnotation("record", act.record.ID)
	refusal := a.keep(ctx, act)
	count(act.record)
	if refusal != nil {
		return refusal
	}
	if act.record.Decision == v1alpha1.AuditDenied {
		return extension.Deny(act.record.Reason)
	}
	if a.admitted != nil {
		a.admitted(ctx, act)
	}
	return nil
}
