package certs

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of certificates, in controller-runtime's registry.
var (
	expiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_certificate_expiry_seconds",
		Help: "End of validity, in seconds since the epoch, of the CA that signs and of the leaf that this process serves.",
	}, []string{"certificate", "source"})
	changes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_certificate_changes_total",
		Help: "Changes of certificates by this process, by step of the rotation and reason.",
	}, []string{"step", "reason"})
)

func init() { metrics.Registry.MustRegister(expiry, changes) }
