package broker

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
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

// codeOK counts requests that are no refusal.
const codeOK = "OK"

// What became of a lease.
const (
	actionRevoked = "revoked"
	actionExpired = "expired"
	actionFailed  = "failed"
)

// beginCounting is for processes that are a broker. Prometheus sees no increase in a counter that
// begins with its first event, so those that alerts are about begin at zero.
func beginCounting() {
	for _, path := range []string{protocol.PathIssue, protocol.PathRevoke, protocol.PathEgress, protocol.PathReport} {
		requestsTotal.WithLabelValues(path, codeOK)
		for _, code := range []protocol.Code{protocol.CodeAuditUnavailable, protocol.CodeUnavailable} {
			requestsTotal.WithLabelValues(path, string(code))
		}
	}
	for _, code := range []protocol.Code{protocol.CodeProviderFailed, protocol.CodePoolExhausted} {
		requestsTotal.WithLabelValues(protocol.PathIssue, string(code))
	}
	for _, provider := range []v1alpha1.CredentialProvider{v1alpha1.ProviderSecret, v1alpha1.ProviderTokenPool, v1alpha1.ProviderGitHubApp} {
		issuedTotal.WithLabelValues(string(provider))
		failedTotal.WithLabelValues(string(provider))
		for _, action := range []string{actionRevoked, actionExpired, actionFailed} {
			endedTotal.WithLabelValues(string(provider), action)
		}
	}
}

func init() { metrics.Registry.MustRegister(requestsTotal, issuedTotal, endedTotal, failedTotal) }
