package enforce

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	enforced = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_enforced_total", Help: "Denied sessions, by way in and the rule that they broke.",
	}, []string{"way", "rule"})
	exempted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_exempted_total", Help: "Sessions of exempt users (break-glass) that broke a rule.",
	}, []string{"way", "rule"})
)

func init() { metrics.Registry.MustRegister(enforced, exempted) }
