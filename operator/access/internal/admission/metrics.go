package admission

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var deniedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_access_denied_total", Help: "Requests and sessions denied at admission, by reason.",
}, []string{"kind", "reason"})

func init() { metrics.Registry.MustRegister(deniedTotal) }
