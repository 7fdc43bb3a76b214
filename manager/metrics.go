package manager

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The metrics of the registration, on controller-runtime's registry.
var (
	registrationRepairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_registration_repairs_total",
		Help: "Writes of a webhook configuration, by what was not as it should be.",
	}, []string{"kind"})
	lastError = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_last_error_timestamp_seconds",
		Help: "When the upkeep last failed, as seconds since the epoch, by part.",
	}, []string{"part"})
)

func init() { metrics.Registry.MustRegister(registrationRepairs, lastError) }
