package hook

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	callsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_hook_calls_total", Help: "Calls of hooks, by controller, hook and result: ok or error.",
	}, []string{"controller", "hook", "result"})
	callSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_hook_call_duration_seconds", Help: "How long calls of hooks took.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"controller", "hook"})
	writesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_hook_writes_total", Help: "Writes that changed something: create, update, recreate, delete, end, adopt, release, status, decorate, revision.",
	}, []string{"controller", "verb"})
	unconverged = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "admitkit_hook_unconverged", Help: "Parents that are not as their hook wants them.",
	}, []string{"controller"})
)

func init() {
	metrics.Registry.MustRegister(callsTotal, callSeconds, writesTotal, unconverged)
}

// metricName is the label controller: composite/NAME, or decorator/NAME.
func metricName(object *unstructured.Unstructured) string {
	return strings.ToLower(strings.TrimSuffix(object.GetKind(), "Controller")) + "/" + object.GetName()
}

func (p *parents) metricName() string { return metricName(p.report.object) }

// forget ends the series of a controller that is gone.
func forget(controller string) {
	labels := prometheus.Labels{"controller": controller}
	callsTotal.DeletePartialMatch(labels)
	callSeconds.DeletePartialMatch(labels)
	writesTotal.DeletePartialMatch(labels)
	unconverged.DeletePartialMatch(labels)
}
