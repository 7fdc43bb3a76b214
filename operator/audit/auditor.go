package audit

import (
	"fmt"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
	"github.com/admitkit/admitkit/operator/audit/internal/touch"
)

// auditor is what the gates have in common.
type auditor struct {
	options    Options
	namespaces []string // the watched ones, none for all
	redactor   *redact.Redactor
	pipeline   *pipeline

	// The following are set by Register. The enforcer and the toucher are nil
	// unless the options need them.
	log      *zap.Logger
	commands extension.Unwrapper
	pods     corev1client.PodsGetter
	enforcer *enforce.Enforcer
	toucher  *touch.Toucher
}

func newAuditor(options Options, namespaces []string) (*auditor, error) {
	options, err := options.withDefaults(namespaces)
	if err != nil {
		return nil, err
	}
	redactor, err := redact.New(options.Redact...)
	if err != nil {
		return nil, fmt.Errorf("Redact: %w", err)
	}
	return &auditor{options: options, namespaces: namespaces, redactor: redactor, pipeline: newPipeline(options.Sinks, options.ClusterName, options.Clock)}, nil
}

// Register connects to the cluster and starts the sinks. Each gate calls it.
func (a *auditor) Register(mgr extension.Manager) error {
	if a.log != nil {
		return nil
	}
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if a.pods, err = corev1client.NewForConfig(config); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := a.connectRules(mgr); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	a.commands = mgr.GetUnwrapper()
	a.log = mgr.GetLogger().Desugar().Named("audit")
	if a.options.WithoutNodeProxy {
		a.log.Warn("nodes/proxy is left out: a session through it, which can be an exec in every container of a node, is neither recorded nor refused; give nobody that right")
	}
	if err := a.pipeline.register(mgr); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// connectRules connects what decides about acts and what marks Pods. Their
// client reads from the API server, because what it reads decides about access at
// this moment.
func (a *auditor) connectRules(mgr extension.Manager) error {
	o := &a.options
	if o.Enforcement == nil && o.TouchedPods == nil && !o.AccessRequests {
		return nil
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	c, err := cluster.NewClient(mgr, scheme)
	if err != nil {
		return err
	}
	var rules enforce.Options
	if o.Enforcement != nil {
		rules = o.Enforcement.options()
	}
	var now clock.PassiveClock = o.Clock
	if o.Clock == (clock.RealClock{}) {
		now = mgr.GetClock() // access ends by the clock that gave requests their creation time
	}
	a.enforcer = enforce.New(rules, c, now)
	if o.TouchedPods != nil {
		a.toucher = touch.New(c, o.Clock)
	}
	return nil
}
