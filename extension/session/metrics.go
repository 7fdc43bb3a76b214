package session

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

var (
	live = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_session_live", Help: "Recorders that are connected to this replica.",
	})
	receivedBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_session_received_bytes_total", Help: "Bytes that recorders have sent, as they are on the wire.",
	})
	refusedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_refused_total", Help: "Recorders that were refused, by HTTP status. After 503 and 429 a recorder tries again.",
	}, []string{"code"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_ended_total", Help: "Sessions that have ended with a whole recording, by reason: command, signal, hangup, no-collector or stopped.",
	}, []string{"reason"})
	notedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_noted_total", Help: "Recorders that did not do as they should, by note: silent, gone or overdue.",
	}, []string{"note"})
	unreportedTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_session_unreported_total", Help: "Recordings whose AuditEvent does not say where they are, because it is missing or could not be written.",
	})
	unrecordedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_session_unrecorded_total", Help: "Sessions that could not be recorded, by cause (attach, ephemeral, no-recorder or bypassed) and decision (allowed or denied).",
	}, []string{"cause", "decision"})
)

func init() {
	metrics.Registry.MustRegister(live, receivedBytes, refusedTotal, endedTotal, notedTotal, unreportedTotal, unrecordedTotal)
}

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
