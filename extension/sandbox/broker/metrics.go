package broker

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	requestsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_broker_requests_total", Help: "Requests to the broker, by path and code; OK is one of these.",
	}, []string{"path", "code"})
	issuedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_broker_leases_issued_total", Help: "Credentials that were given on lease, renewals included.",
	}, []string{"provider"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_broker_leases_ended_total", Help: "Leases that have ended: revoked, or expired before that succeeded.",
	}, []string{"provider", "action"})
	failedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_broker_revocations_failed_total", Help: "Attempts to end a lease that failed. Each is repeated until one succeeds.",
	}, []string{"provider"})
)

func init() { metrics.Registry.MustRegister(requestsTotal, issuedTotal, endedTotal, failedTotal) }
