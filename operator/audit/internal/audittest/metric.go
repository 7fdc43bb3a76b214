package audittest

import (
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metric returns the sum of the counters, gauges and histogram counts that have a
// name and these label values.
func Metric(t testing.TB, name string, values ...string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if has(m.GetLabel(), values) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func has(labels []*dto.LabelPair, values []string) bool {
	for _, value := range values {
		if !slices.ContainsFunc(labels, func(l *dto.LabelPair) bool { return l.GetValue() == value }) {
			return false
		}
	}
	return true
}
