package audit

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	enforced = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_enforced_total", Help: "Sessions that were denied, by way in and the rule that they broke.",
	}, []string{"way", "rule"})
	exempted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_exempted_total", Help: "Sessions of exempt users (break-glass) that broke a rule.",
	}, []string{"way", "rule"})
	touched = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_touched_total", Help: "Times that a Pod was labelled before an interactive session.",
	})
	touchFailed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_touch_failed_total", Help: "Interactive sessions that began although their Pod could not be labelled.",
	})
	evicted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_evicted_total", Help: "Pods that were evicted after an interactive session.",
	})
	putOff = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_evictions_put_off_total", Help: "Attempts at an eviction that a PodDisruptionBudget put off.",
	})
)

func init() {
	metrics.Registry.MustRegister(enforced, exempted, touched, touchFailed, evicted, putOff)
}
