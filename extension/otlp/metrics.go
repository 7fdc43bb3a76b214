package otlp

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	undelivered = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_otlp_undelivered", Help: "Records in the queue on disk that the collector does not have yet.",
	}, []string{"sender"})
	rejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_otlp_rejected_total", Help: "Records or spans that the collector rejected for good, and that are lost.",
	}, []string{"sender"})
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_otlp_failures_total", Help: "Requests that failed by reason: rejected, unauthorized, redirect, busy, unreachable or unexpected.",
	}, []string{"sender", "reason"})
)

func init() { metrics.Registry.MustRegister(undelivered, rejected, failures) }
