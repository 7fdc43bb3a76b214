package manager

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/manager/buildinfo"
)

// Metrics of the registration and of watchers, in controller-runtime's registry.
var (
	buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_build_info",
		Help: "Always 1. version is admitkit's; program is the import path of the program; program_version and commit are the program's own.",
	}, []string{"version", "program", "program_version", "commit", "goversion"})
	registrationRepairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_registration_repairs_total",
		Help: "Writes of a webhook configuration, by what was wrong with it.",
	}, []string{"kind"})
	scopeUnserved = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_scope_unserved_resources",
		Help: "1 for a resource of a webhook's scope for which no admission comes, because the API server does not serve it.",
	}, []string{"webhook", "resource"})
	conversionRegistered = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_conversion_registered",
		Help: "1 if the CustomResourceDefinition names this installation as its converter, with the present CA.",
	}, []string{"crd"})
	lastError = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_last_error_timestamp_seconds",
		Help: "Time of the last failure of the upkeep, in seconds since the epoch, by part.",
	}, []string{"part"})

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
	info := buildinfo.Get()
	buildInfo.WithLabelValues(info.Admitkit, info.Program, info.Version, info.Commit, info.GoVersion).Set(1)
	metrics.Registry.MustRegister(buildInfo, registrationRepairs, scopeUnserved, conversionRegistered, lastError, watcherEvents, watcherDropped, watcherRelists, watcherPanics, watcherQueue)
}

// addProcessMetrics adds the metrics of the process and of the Go runtime, unless
// controller-runtime already has, as it does in programs with controllers.
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
