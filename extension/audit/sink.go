package audit

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// Sink is where records go.
//
// A sink may also be an [extension.Hosted], to learn its host before the
// first record.
type Sink interface {
	// Name names the sink in messages, logs and metrics: a DNS label (RFC 1123).
	Name() string
	// Write keeps the record, and returns nil only once it has: records of one
	// Pod come one after the other, in their order, those of different Pods at
	// once. A record that was kept before, as its ID tells, need not be kept
	// again. A sink that has effects outside the log must do nothing about a
	// record with DryRun.
	Write(ctx context.Context, record *v1alpha1.AuditRecord) error
}

// FailurePolicy says what happens to an act when a sink cannot take its record.
type FailurePolicy string

// The failure policies of a sink.
const (
	// Open lets the act through. The loss is counted and logged.
	Open FailurePolicy = "Open"
	// Closed refuses the act with a message. While no manager runs, every act is
	// refused.
	Closed FailurePolicy = "Closed"
)

// SinkOptions say how a sink is used.
type SinkOptions struct {
	// Sink is the sink. There is no default.
	Sink Sink
	// FailurePolicy is Open by default.
	FailurePolicy FailurePolicy
	// Timeout is how long the writing of a record may take. Default: 2 s; at
	// most 8 s, so that the answer reaches the API server within its 10 s.
	Timeout time.Duration
	// QueueLength is how many records may wait for a sink that is Open; those
	// beyond are lost. Default: 1000.
	QueueLength int
}

// Defaults and limits of SinkOptions.
const (
	DefaultTimeout     = 2 * time.Second
	MaxTimeout         = 8 * time.Second
	DefaultQueueLength = 1000
)

func (o SinkOptions) withDefaults() (SinkOptions, error) {
	if o.Sink == nil {
		return o, fmt.Errorf("Sink is missing")
	}
	name := o.Sink.Name()
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return o, fmt.Errorf("the sink's name %q: %s", name, problems[0])
	}
	if sink, ok := o.Sink.(validated); ok {
		if err := sink.validate(); err != nil {
			return o, fmt.Errorf("sink %s: %w", name, err)
		}
	}
	if o.FailurePolicy == "" {
		o.FailurePolicy = Open
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.QueueLength == 0 {
		o.QueueLength = DefaultQueueLength
	}
	switch {
	case o.FailurePolicy != Open && o.FailurePolicy != Closed:
		return o, fmt.Errorf("FailurePolicy of sink %s is %q: it must be Open or Closed", name, o.FailurePolicy)
	case o.Timeout < 0 || o.Timeout > MaxTimeout:
		return o, fmt.Errorf("Timeout of sink %s is %s: it must be positive and at most %s", name, o.Timeout, MaxTimeout)
	case o.QueueLength < 0:
		return o, fmt.Errorf("QueueLength of sink %s is %d: it must be positive", name, o.QueueLength)
	}
	return o, nil
}

// validated is a sink with options that can be wrong.
type validated interface{ validate() error }
