package auditevent

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	folded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_folded_total", Help: "Records without an AuditEvent of their own, because they are part of a flood.",
	})
	tampering = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_tampering_total", Help: "Refused changes and deletions of AuditEvents and of their CRD.",
	})
	reaped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_audit_reaped_total", Help: "AuditEvents that were deleted at the end of their retention.",
	})
	retentionLateness = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "admitkit_audit_retention_lateness_seconds", Help: "How long after the end of its retention an AuditEvent was deleted.",
		Buckets: []float64{.005, .01, .05, .1, .5, 1, 5, 10, 60, 600, 3600},
	})
)

func init() { metrics.Registry.MustRegister(folded, tampering, reaped, retentionLateness) }
