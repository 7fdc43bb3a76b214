// Package sink is where audit records go: the contract of a sink ([Sink]), and three
// sinks: the manager's log ([NewLog]), Events on the Pods ([NewEvent]) and a file
// ([NewFile]).
//
// Packages sink/auditevent and sink/deliver have sinks too. Your own sink
// stands where they stand. Besides Sink it may implement
//
//   - [Batching], to keep many records at once;
//   - [Validated], to check its options;
//   - [extension.Hosted], to learn its host before the first record;
//   - [extension.Entitled] and [extension.ClusterEntitled], to name the rights
//     that it needs;
//   - [extension.Composite], to bring extensions of its own along: webhooks that
//     guard its records, a controller that deletes them.
package sink

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Sink is where records go.
type Sink interface {
	// Name names the sink in messages, logs and metrics: a DNS label (RFC 1123).
	Name() string
	// Write returns nil only once the record is kept. Records of one Pod are
	// written one after the other, in their order; those of different Pods at
	// the same time. A record may be written twice: its ID tells. A sink with
	// effects outside the log must ignore a record with DryRun.
	Write(ctx context.Context, record *v1alpha1.AuditRecord) error
}

// Batching is implemented by a sink that keeps several records together, which so wait
// for each other.
type Batching interface {
	Sink
	// Begin does what Write does, but may return before the record is kept: records of
	// one Pod are begun one after the other. wait returns what Write would. It is called
	// once, with ctx still alive.
	Begin(ctx context.Context, record *v1alpha1.AuditRecord) (wait func() error)
}

// Validated is implemented by a sink with options that can be wrong.
type Validated interface {
	// Validate returns an error that names the wrong option.
	Validate() error
}

var lost = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "admitkit_audit_lost_total", Help: "Records that a sink did not keep although the act went on.",
}, []string{"sink"})

func init() { metrics.Registry.MustRegister(lost) }

// CountLost counts a record that the named sink has lost. Audit calls it when
// Write fails and the act goes on; call it for a record that you lose after
// Write has returned nil.
func CountLost(name string) { lost.WithLabelValues(name).Inc() }

// BeginLost begins the count of the named sink's lost records at zero, since Prometheus
// sees no increase in a counter whose first value is already 500. Audit calls it for each
// sink at the start; call it for names of your own.
func BeginLost(name string) { lost.WithLabelValues(name) }
