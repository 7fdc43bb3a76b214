package cloudevents

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	undelivered = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_cloudevents_undelivered", Help: "Events in the queue on disk that the endpoint does not have yet.",
	}, []string{"sender"})
	rejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_cloudevents_rejected_total", Help: "Queued events that the endpoint rejected for good, and that are lost.",
	}, []string{"sender"})
)

func init() { metrics.Registry.MustRegister(undelivered, rejected) }

func (s *Sender) countUndelivered() {
	undelivered.WithLabelValues(s.options.Name).Set(float64(s.queue.len()))
}
