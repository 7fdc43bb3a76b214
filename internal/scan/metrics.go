package scan

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of a program that scans again and again.
var (
	findings = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_scan_findings",
		Help: "Objects that an extension would deny (denied, stuck), change (changed) or fail at (failed), as the last scan found.",
	}, []string{"extension", "outcome"})
	scanObjects = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_scan_objects",
		Help: "Objects that the last scan sent to an extension.",
	}, []string{"extension"})
	complete = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_scan_complete_timestamp_seconds",
		Help: "When the last scan ended that could read and decide everything.",
	})
	duration = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_scan_duration_seconds",
		Help: "How long the last scan took.",
	})
)

// Collectors are the metrics.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{findings, scanObjects, complete, duration}
}

// Measure sets the metrics by a result.
func (r *Result) Measure(now time.Time, took time.Duration) {
	findings.Reset()
	scanObjects.Reset()
	for _, name := range r.order {
		scanObjects.WithLabelValues(name).Set(0)
		for _, outcome := range Outcomes {
			findings.WithLabelValues(name, string(outcome)).Set(0)
		}
	}
	for _, row := range r.Rows {
		scanObjects.WithLabelValues(row.Extension).Add(float64(row.Objects))
		for _, outcome := range Outcomes {
			findings.WithLabelValues(row.Extension, string(outcome)).Add(float64(*row.count(outcome)))
		}
	}
	duration.Set(took.Seconds())
	if len(r.Incomplete) == 0 {
		complete.Set(float64(now.Unix()))
	}
}
