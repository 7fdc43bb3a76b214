package audit

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

var (
	records = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_records_total", Help: "Acts by way in, and whether they were allowed or denied.",
	}, []string{"way", "decision"})
	sinkDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_audit_sink_duration_seconds", Help: "How long a sink took to take a record, or to fail.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"sink"})
	queueDepth = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_audit_queue_depth", Help: "Records that wait for a sink.",
	}, []string{"sink"})
	lost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_lost_total", Help: "Records that a sink did not get although the act went on.",
	}, []string{"sink"})
	refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_audit_refused_total", Help: "Acts that were refused because a sink could not take the record.",
	}, []string{"sink"})
	folded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_folded_total", Help: "Records that have no AuditEvent of their own because they are part of a flood.",
	})
	tampering = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_tampering_total", Help: "Changes and deletions of AuditEvents, and of their CRD, that were refused.",
	})
	reaped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_reaped_total", Help: "AuditEvents that were deleted at the end of their retention.",
	})
	retentionLateness = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "admitkit_audit_retention_lateness_seconds", Help: "How long after the end of its retention an AuditEvent was deleted.",
		Buckets: []float64{.005, .01, .05, .1, .5, 1, 5, 10, 60, 600, 3600},
	})
	undelivered = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_audit_undelivered", Help: "Records in the queue on disk that the endpoint does not have yet.",
	}, []string{"sink"})
)

func init() {
	metrics.Registry.MustRegister(records, sinkDuration, queueDepth, lost, refusals, folded, tampering, reaped, retentionLateness, undelivered)
}

func count(r v1alpha1.AuditRecord) {
	records.WithLabelValues(string(r.Way), string(r.Decision)).Inc()
}
