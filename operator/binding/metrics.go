package binding

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	startedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_binding_started_total", Help: "Bindings that began.",
	}, []string{"kind"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_binding_ended_total", Help: "Bindings whose time was over.",
	}, []string{"kind"})
	repairedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_binding_repaired_total", Help: "Bindings that somebody changed or deleted, and that were made again.",
	}, []string{"kind"})
	deniedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_binding_denied_total", Help: "Transient bindings denied at admission.",
	}, []string{"kind"})
	startLateness = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_binding_start_lateness_seconds", Help: "How long after validFrom the binding was made.",
		Buckets: buckets,
	}, []string{"kind"})
	endLateness = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_binding_end_lateness_seconds", Help: "How long after validUntil the binding was deleted.",
		Buckets: buckets,
	}, []string{"kind"})

	buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
)

func init() {
	metrics.Registry.MustRegister(startedTotal, endedTotal, repairedTotal, deniedTotal, startLateness, endLateness)
}
