package manager

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The metrics of the registration and of watchers, on controller-runtime's registry.
var (
	registrationRepairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_registration_repairs_total",
		Help: "Writes of a webhook configuration, by what was not as it should be.",
	}, []string{"kind"})
	lastError = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_last_error_timestamp_seconds",
		Help: "When the upkeep last failed, as seconds since the epoch, by part.",
	}, []string{"part"})

	watcherEvents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_events_total",
		Help: "Events that a watcher was handed, by type: ADDED, MODIFIED or DELETED.",
	}, []string{"watcher", "type"})
	watcherDropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_dropped_events_total",
		Help: "Events that found the queue of a slow watcher full. It is told the state that came of them by the next relist.",
	}, []string{"watcher"})
	watcherRelists = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_relists_total",
		Help: "Comparisons of what a watcher was told with all Pods: one at the start, one after dropped events.",
	}, []string{"watcher"})
	watcherPanics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_panics_total",
		Help: "Panics by watcher.",
	}, []string{"watcher"})
	watcherQueue = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_watcher_queue_length",
		Help: "Events that wait for a watcher.",
	}, []string{"watcher"})
)

func init() {
	metrics.Registry.MustRegister(registrationRepairs, lastError, watcherEvents, watcherDropped, watcherRelists, watcherPanics, watcherQueue)
}

// addProcessMetrics adds those of the process and of the Go runtime, unless
// controller-runtime has: it does so in programs that have controllers.
func addProcessMetrics() error {
	err := metrics.Registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return nil
	}
	return errors.Join(err, metrics.Registry.Register(collectors.NewGoCollector()))
}

// logError reports the failure of a part that is tried again.
func (m *Manager) logError(part string, err error) {
	lastError.WithLabelValues(part).SetToCurrentTime()
	m.options.Logger.Errorw(part+" failed", "error", err)
}
