package touch

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	touched = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_touched_total", Help: "Pods that were marked before an interactive session.",
	})
	touchFailed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_touch_failed_total", Help: "Interactive sessions that began although their Pod could not be marked.",
	})
	evicted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_evicted_total", Help: "Pods that were evicted after an interactive session.",
	})
	putOff = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_evictions_put_off_total", Help: "Attempts at an eviction that a PodDisruptionBudget put off.",
	})
)

func init() { metrics.Registry.MustRegister(touched, touchFailed, evicted, putOff) }
