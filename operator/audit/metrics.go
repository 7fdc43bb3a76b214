package audit

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	records = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_records_total", Help: "Acts by way in and decision, Allowed or Denied.",
	}, []string{"way", "decision"})
	sinkDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_audit_sink_duration_seconds", Help: "How long a sink took to keep a record, or to fail.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"sink"})
	queueDepth = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_audit_queue_depth", Help: "Records that wait for a sink.",
	}, []string{"sink"})
	refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_refused_total", Help: "Acts that were refused because a sink could not take the record.",
	}, []string{"sink"})
)

func init() { metrics.Registry.MustRegister(records, sinkDuration, queueDepth, refusals) }
