package feed

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of watchers, in controller-runtime's registry.
var (
	watcherEvents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_events_total",
		Help: "Events passed to a watcher, by type: ADDED, MODIFIED or DELETED.",
	}, []string{"watcher", "type"})
	watcherDropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_dropped_events_total",
		Help: "Events that found the queue of a slow watcher full. The next relist tells it the resulting state.",
	}, []string{"watcher"})
	watcherRelists = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_relists_total",
		Help: "Comparisons of the objects that a watcher knows with those that exist: one at the start, one after dropped events.",
	}, []string{"watcher"})
	watcherPanics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_watcher_panics_total",
		Help: "Panics of a watcher.",
	}, []string{"watcher"})
	watcherQueue = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_watcher_queue_length",
		Help: "Events waiting for a watcher.",
	}, []string{"watcher"})
)

func init() {
	metrics.Registry.MustRegister(watcherEvents, watcherDropped, watcherRelists, watcherPanics, watcherQueue)
}
