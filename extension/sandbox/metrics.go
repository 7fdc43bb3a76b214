package sandbox

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var deniedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_sandbox_denied_total", Help: "What the sandbox denied at admission.",
}, []string{"kind"})

func init() {
	metrics.Registry.MustRegister(deniedTotal)
}
