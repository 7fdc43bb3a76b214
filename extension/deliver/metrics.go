package deliver

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

type metrics struct {
	undelivered        *prometheus.GaugeVec
	rejected, failures *prometheus.CounterVec
}

var eventMetrics = metrics{
	undelivered: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_cloudevents_undelivered", Help: "Events in the queue on disk that the endpoint does not have yet.",
	}, []string{"sender"}),
	rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_cloudevents_rejected_total", Help: "Queued events that the endpoint rejected for good, and that are lost.",
	}, []string{"sender"}),
	failures: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_cloudevents_failed_total", Help: "Requests that delivered nothing. reason is unauthorized (401 or 403), redirect (they are not followed), rejected (the events are wrong), busy (another answer) or unreachable.",
	}, []string{"sender", "reason"}),
}

var otlpMetrics = metrics{
	undelivered: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_otlp_undelivered", Help: "Records in the queue on disk that the collector does not have yet.",
	}, []string{"sender"}),
	rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_otlp_rejected_total", Help: "Records or spans that the collector rejected for good, and that are lost.",
	}, []string{"sender"}),
	failures: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_otlp_failures_total", Help: "Requests that failed by reason: rejected, unauthorized, redirect, busy, unreachable or unexpected.",
	}, []string{"sender", "reason"}),
}

func init() {
	for _, m := range []metrics{eventMetrics, otlpMetrics} {
		ctrlmetrics.Registry.MustRegister(m.undelivered, m.rejected, m.failures)
	}
}

func (s *Sender) countQueued() {
	s.encoding.undelivered.WithLabelValues(s.options.Name).Set(float64(s.queue.len()))
}

func (s *Sender) countRejected(items int64) {
	s.encoding.rejected.WithLabelValues(s.options.Name).Add(float64(items))
}
