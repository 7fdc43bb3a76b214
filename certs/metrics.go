package certs

import (
	"crypto/x509"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of certificates, in controller-runtime's registry.
var (
	expiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_certificate_expiry_timestamp_seconds",
		Help: "End of validity, in seconds since the epoch, of the CA that signs and of the leaf that this process serves.",
	}, []string{"certificate", "source"})
	start = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_certificate_start_timestamp_seconds",
		Help: "Begin of validity of the same certificates, so that an alert can tell how much of a lifetime is left.",
	}, []string{"certificate", "source"})
	changes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_certificate_changes_total",
		Help: "Changes of certificates by this process, by step of the rotation and reason.",
	}, []string{"step", "reason"})
)

func init() { metrics.Registry.MustRegister(expiry, start, changes) }

// setValidity sets the metrics of a certificate that is in use from now on.
func setValidity(certificate, source string, cert *x509.Certificate) {
	expiry.WithLabelValues(certificate, source).Set(float64(cert.NotAfter.Unix()))
	start.WithLabelValues(certificate, source).Set(float64(cert.NotBefore.Unix()))
}
