package audit_test

import (
	"context"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
)

// metric returns the value of the counter or gauge that has these label values.
func metric(t *testing.T, name string, values ...string) float64 {
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
		found := false
		for _, label := range labels {
			found = found || label.GetValue() == value
		}
		if !found {
			return false
		}
	}
	return true
}

// sinkFunc is a sink of the test's own.
type sinkFunc struct {
	name string
	do   func(context.Context, *v1alpha1.AuditRecord) error
}

func (s sinkFunc) Name() string { return s.name }
func (s sinkFunc) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	return s.do(ctx, r)
}

func TestWrongOptionsAreNamed(t *testing.T) {
	log := audit.NewLogSink()
	of := func(sinks ...audit.SinkOptions) audit.Options { return audit.Options{Sinks: sinks} }
	for want, options := range map[string]audit.Options{
		"Required and Sinks":            {Required: true, Sinks: []audit.SinkOptions{{Sink: log}}},
		"Sinks[0]: Sink is missing":     of(audit.SinkOptions{}),
		`named "log" is there`:          of(audit.SinkOptions{Sink: log}, audit.SinkOptions{Sink: audit.NewLogSink()}),
		`FailurePolicy of sink log`:     of(audit.SinkOptions{Sink: log, FailurePolicy: "Fail"}),
		"Timeout of sink log is 9s":     of(audit.SinkOptions{Sink: log, Timeout: 9 * time.Second}),
		"QueueLength of sink log is -1": of(audit.SinkOptions{Sink: log, QueueLength: -1}),
		`the sink's name "a b"`:         of(audit.SinkOptions{Sink: sinkFunc{name: "a b"}}),
		"sink file: Path is missing":    of(audit.SinkOptions{Sink: audit.NewFileSink(audit.FileSinkOptions{})}),
		"must be https":                 of(audit.SinkOptions{Sink: audit.NewCloudEventsSink(audit.CloudEventsSinkOptions{URL: "http://collector.example.com"})}),
		"sink auditevent: Retention":    of(audit.SinkOptions{Sink: audit.NewObjectSink(audit.ObjectSinkOptions{Retention: -1})}),
	} {
		if _, err := audit.New(options).Parts(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
