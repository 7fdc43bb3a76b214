package access

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	grants = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_access_grants", Help: "Grants that are live, as the replica that leads sees them.",
	}, []string{"kind"})
	granted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_granted_total", Help: "Requests that were granted.",
	}, []string{"kind"})
	denied = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_denied_total", Help: "What was denied at admission, by reason.",
	}, []string{"kind", "reason"})
	expired = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_expired_total", Help: "Grants that ended because their time was over.",
	}, []string{"kind"})
	lateness = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_access_expiry_lateness_seconds", Help: "How long after its end the right to access was removed.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(grants, granted, denied, expired, lateness)
}
