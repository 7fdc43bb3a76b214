package access

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	grants = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_access_grants", Help: "Live grants, as the leader sees them.",
	}, []string{"kind"})
	grantedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_granted_total", Help: "Requests that were granted.",
	}, []string{"kind"})
	decisionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_decisions_total", Help: "Decisions about requests that counted: Approve or Deny.",
	}, []string{"kind", "decision"})
	expiredTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_expired_total", Help: "Grants whose time was over.",
	}, []string{"kind"})
	restoredTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_egress_restored_total", Help: "Policies of access Pods that were deleted or changed by others, and restored.",
	}, []string{"was"})
	lateness = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_access_expiry_lateness_seconds", Help: "How long after its end the RoleBinding was deleted.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(grants, grantedTotal, decisionsTotal, expiredTotal, restoredTotal, lateness)
}

// liveGrants counts the grants that are live.
type liveGrants struct {
	mu   sync.Mutex
	kind string
	keys map[types.NamespacedName]bool
}

func (l *liveGrants) set(key types.NamespacedName, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys[key] == live {
		return
	}
	if live {
		l.keys[key] = true
		grants.WithLabelValues(l.kind).Inc()
	} else {
		delete(l.keys, key)
		grants.WithLabelValues(l.kind).Dec()
	}
}
