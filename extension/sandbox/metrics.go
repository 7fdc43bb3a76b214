package sandbox

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	deniedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_denied_total", Help: "What the sandbox denied at admission.",
	}, []string{"kind"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_ended_total", Help: "HarnessRuns that ended, by their terminal phase.",
	}, []string{"phase"})
	runSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_sandbox_run_seconds", Help: "How long HarnessRuns took, from when their Job was made.",
		Buckets: []float64{1, 5, 15, 60, 300, 900, 1800, 3600, 14400, 86400},
	}, []string{"phase"})
	seedSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_sandbox_seed_seconds", Help: "How long it took to seed Workspaces, by the phase that they came to.",
		Buckets: []float64{1, 5, 15, 60, 300, 600, 3600, 86400},
	}, []string{"phase"})
	restoredTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_policies_restored_total", Help: "Network policies of HarnessRuns that somebody deleted or changed, and that were restored.",
	}, []string{"was"})
	outputReadsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_output_reads_total", Help: "How often the output of HarnessRuns was read, by whether that succeeded.",
	}, []string{"result"})
	watchdogTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_watchdog_total", Help: "Interactive HarnessRuns that were ended because nobody used them, or their life was over.",
	}, []string{"reason"})
	unrecordedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_unrecorded_total", Help: "Records of what happened to HarnessRuns that nobody kept.",
	}, []string{"action"})
)

func init() {
	metrics.Registry.MustRegister(deniedTotal, endedTotal, runSeconds, seedSeconds, restoredTotal, outputReadsTotal, watchdogTotal, unrecordedTotal)
}
