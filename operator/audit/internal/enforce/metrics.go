package enforce

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

var (
	enforced = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_enforced_total", Help: "Denied sessions, by way in and the rule that they broke.",
	}, []string{"way", "rule"})
	wouldDeny = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_would_deny_total", Help: "Sessions that enforcement would deny, were its mode Enforce, by way in and the rule that they broke.",
	}, []string{"way", "rule"})
	exempted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_exempted_total", Help: "Sessions of exempt users (break-glass) that broke a rule.",
	}, []string{"way", "rule"})
)

// beginCounts begins the counters of break-glass that alerts watch at zero.
func (o *Options) beginCounts() {
	if !o.hasExempt() {
		return
	}
	for _, way := range []v1alpha1.AuditWay{
		v1alpha1.WayExec, v1alpha1.WayAttach, v1alpha1.WayPortForward, v1alpha1.WayPodProxy,
		v1alpha1.WayServiceProxy, v1alpha1.WayNodeProxy, v1alpha1.WayDebug, v1alpha1.WayPod,
	} {
		for _, rule := range []Rule{RuleKubelet, RuleServiceProxy, RuleTTY, RuleStdin, RuleCommand, RuleRequest, RuleSingleUse, RuleUndecided} {
			exempted.WithLabelValues(string(way), string(rule))
		}
	}
}

func init() { metrics.Registry.MustRegister(enforced, wouldDeny, exempted) }
