package sandbox

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

var (
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_ended_total", Help: "SandboxRuns that ended, by their terminal phase.",
	}, []string{"phase"})
	runSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_sandbox_run_seconds", Help: "How long SandboxRuns took, from when their Job was made.",
		Buckets: []float64{1, 5, 15, 60, 300, 900, 1800, 3600, 14400, 86400},
	}, []string{"phase"})
	seedSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_sandbox_seed_seconds", Help: "How long it took to seed Workspaces, by the phase that they came to.",
		Buckets: []float64{1, 5, 15, 60, 300, 600, 3600, 86400},
	}, []string{"phase"})
	restoredTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_policies_restored_total", Help: "Network policies of SandboxRuns that somebody deleted or changed, and that were restored.",
	}, []string{"was"})
	outputReadsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_output_reads_total", Help: "How often the output of SandboxRuns was read, by whether that succeeded.",
	}, []string{"result"})
	watchdogTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_watchdog_total", Help: "Interactive SandboxRuns that were ended because nobody used them, or their life was over.",
	}, []string{"reason"})
	unrecordedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_sandbox_unrecorded_total", Help: "Records of what happened to SandboxRuns that nobody kept.",
	}, []string{"action"})
)

// Actions of records, beside the phases in which runs end.
const (
	actionStarted       = "started"
	actionRestored      = "restored"
	actionOrphanDeleted = "orphan-deleted"
	actionTampered      = "credentials-tampered"
)

// actionOf is that of the record of a run that ends.
func actionOf(phase v1alpha1.SandboxPhase) string { return strings.ToLower(string(phase)) }

// beginCounting is for processes that reconcile. Prometheus sees no increase in a counter that
// begins with its first event, so those that alerts are about begin at zero.
func beginCounting() {
	for _, phase := range []v1alpha1.SandboxPhase{v1alpha1.SandboxSucceeded, v1alpha1.SandboxFailed, v1alpha1.SandboxCancelled} {
		endedTotal.WithLabelValues(string(phase))
		unrecordedTotal.WithLabelValues(actionOf(phase))
	}
	for _, action := range []string{actionStarted, actionRestored, actionOrphanDeleted, actionTampered} {
		unrecordedTotal.WithLabelValues(action)
	}
	for _, was := range []string{egress.Deleted, egress.Changed} {
		restoredTotal.WithLabelValues(was)
	}
}

func init() {
	metrics.Registry.MustRegister(endedTotal, runSeconds, seedSeconds, restoredTotal, outputReadsTotal, watchdogTotal, unrecordedTotal)
}
