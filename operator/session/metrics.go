package session

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

var (
	live = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_session_live", Help: "Recorders that are connected to this replica.",
	})
	receivedBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_session_received_bytes_total", Help: "Bytes that recorders have sent, as they are on the wire.",
	})
	refusedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_refused_total", Help: "Recorders that were refused, by HTTP status, or connection for those of addresses that have too many. After these, 503 and 429 a recorder tries again.",
	}, []string{"code"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_ended_total", Help: "Sessions that have ended with a whole recording, by reason: command, signal, hangup, no-collector or stopped.",
	}, []string{"reason"})
	notedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_noted_total", Help: "Recorders that did not do as they should, by note: silent, gone, overdue, contested, replayed or left.",
	}, []string{"note"})
	waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_session_waiting", Help: "Sessions that wait for the storage at the moment. Their terminals wait, too, if that takes long.",
	})
	storeSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "admitkit_session_store_seconds", Help: "Time that the storage takes to begin, extend or seal a recording.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 6},
	})
	storeFailuresTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_session_store_failures_total", Help: "Recordings that could not be begun, extended or sealed. The recorder tries again, and its session waits.",
	})
	lostBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_session_lost_bytes_total", Help: "Bytes of sessions that are not recorded, because no collector was reached and the policy is Open.",
	})
	storageOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_session_storage_open", Help: "1 once the storage of recordings could be opened. Until then recorders are refused.",
	})
	unredeemedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_unredeemed_total", Help: "Sessions that were allowed and whose recorder never came (never-began), or of which that could not be found out (unchecked).",
	}, []string{"result"})
	evictionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_evictions_total", Help: "Attempts to evict Pods whose recorders did not do as they should, by result: evicted, refused by a PodDisruptionBudget, or failed.",
	}, []string{"result"})
	unreportedTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_session_unreported_total", Help: "Recordings whose AuditEvent does not say where they are, because it is missing or could not be written.",
	})
	unrecordedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_unrecorded_total", Help: "Sessions that could not be recorded, by cause (attach, portforward, pod-proxy, service-proxy, node-proxy, ephemeral, no-recorder or bypassed) and decision (allowed or denied).",
	}, []string{"cause", "decision"})
)

func init() {
	metrics.Registry.MustRegister(live, receivedBytes, refusedTotal, endedTotal, notedTotal, waiting, storeSeconds, storeFailuresTotal, lostBytes, unredeemedTotal, evictionsTotal, unreportedTotal, unrecordedTotal)
}

// beginCounting is for processes that collect. Only these have a storage that can be open: in
// others its 0 would look like a failure. Prometheus sees no increase in a counter that begins
// with its first event, so those that alerts are about begin at zero.
var beginCounting = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(storageOpen)
	for _, note := range []string{collector.Silent, collector.Gone, collector.Overdue, collector.Contested, collector.Replayed, collector.Left} {
		notedTotal.WithLabelValues(note)
	}
	for _, result := range []string{resultNeverBegan, resultUnchecked} {
		unredeemedTotal.WithLabelValues(result)
	}
	for _, result := range []string{resultEvicted, resultRefused, resultFailed} {
		evictionsTotal.WithLabelValues(result)
	}
})

// Results of tickets that nobody redeemed, and of evictions.
const (
	resultNeverBegan, resultUnchecked          = "never-began", "unchecked"
	resultEvicted, resultRefused, resultFailed = "evicted", "refused", "failed"
)

// observer counts what the collector does.
type observer struct{}

var _ collector.Observer = observer{}

// Waiting implements [collector.Observer].
func (observer) Waiting(change int) { waiting.Add(float64(change)) }

// Stored implements [collector.Observer].
func (observer) Stored(took time.Duration, err error) {
	storeSeconds.Observe(took.Seconds())
	if err != nil {
		storeFailuresTotal.Inc()
	}
}

// Lost implements [collector.Observer].
func (observer) Lost(bytes int64) { lostBytes.Add(float64(bytes)) }

// kindOfEnd is the reason for which a session has ended, as one of a few words.
func kindOfEnd(end *protocol.End) string {
	switch {
	case end.Reason == "" && end.Signal != 0:
		return "signal"
	case end.Reason == "":
		return "command"
	case end.Reason == protocol.ReasonHangup:
		return "hangup"
	case strings.HasPrefix(end.Reason, protocol.ReasonNoCollector):
		return "no-collector"
	}
	return "stopped"
}
