package cloudevents

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension/internal/outbox"
)

var (
	undelivered = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_cloudevents_undelivered", Help: "Events in the queue on disk that the endpoint does not have yet.",
	}, []string{"sender"})
	rejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_cloudevents_rejected_total", Help: "Queued events that the endpoint rejected for good, and that are lost.",
	}, []string{"sender"})
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_cloudevents_failed_total", Help: "Requests that delivered nothing. reason is unauthorized (401 or 403), redirect (they are not followed), rejected (the events are wrong), busy (another answer) or unreachable.",
	}, []string{"sender", "reason"})
)

func init() { metrics.Registry.MustRegister(undelivered, rejected, failures) }

// beginCounts begins the counters that alerts watch at zero.
func (s *Sender) beginCounts() {
	rejected.WithLabelValues(s.options.Name)
	for _, reason := range outbox.Reasons {
		failures.WithLabelValues(s.options.Name, string(reason))
	}
}

func (s *Sender) countUndelivered(items int) {
	undelivered.WithLabelValues(s.options.Name).Set(float64(items))
}
