package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// ruleUnrecorded is the rule of an act that was refused because a Closed sink
// could not take its record.
const ruleUnrecorded = "unrecorded"

// pipeline hands records to the sinks.
type pipeline struct {
	open, closed []*outlet
	order        stripes
	cluster      string // the name of the cluster
	clock        clock.PassiveClock
	log          *zap.Logger // set by register
}

func newPipeline(sinks []SinkOptions, cluster string, clock clock.Clock) *pipeline {
	p := &pipeline{cluster: cluster, order: newStripes(), clock: clock, log: zap.NewNop()}
	for _, options := range sinks {
		o := newOutlet(options, clock)
		if options.FailurePolicy == Closed {
			p.closed = append(p.closed, o)
		} else {
			p.open = append(p.open, o)
		}
	}
	return p
}

func (p *pipeline) register(mgr extension.Manager) error {
	p.log = mgr.GetLogger().Desugar().Named("audit")
	for _, o := range slices.Concat(p.closed, p.open) {
		if err := o.register(mgr); err != nil {
			return fmt.Errorf("sink %s: %w", o.Sink.Name(), err)
		}
	}
	return nil
}

// keep writes a record to all Closed sinks at once. When each has it, or the act
// is refused, keep queues it for the Open sinks, which so learn the outcome.
// Records of one Pod are kept one after the other.
func (p *pipeline) keep(ctx context.Context, record *v1alpha1.AuditRecord) (refusal error) {
	record.Cluster = p.cluster
	unlock, before, err := p.order.lock(ctx, act.Lane(record))
	if err != nil {
		return p.keepUnordered(record, err)
	}
	record.Time = metav1.NewMicroTime(p.clock.Now())
	kept := p.beginClosed(ctx, record)
	after := unlock()
	defer close(after)
	refusal = p.settleClosed(record, kept())
	<-before // its sinks have deadlines, too
	for _, o := range p.open {
		o.offer(record)
	}
	return refusal
}

// keepUnordered queues a record that waited too long for those before it in the
// same Pod, and refuses its act if a sink is Closed.
func (p *pipeline) keepUnordered(record *v1alpha1.AuditRecord, err error) error {
	record.Time = metav1.NewMicroTime(p.clock.Now())
	var refusal error
	if len(p.closed) > 0 {
		refusal = extension.Denyf("%s is only allowed when it is recorded, and the records before it take too long: %w", act.Describe(record), err)
		refuse(record, refusal)
	}
	for _, o := range slices.Concat(p.closed, p.open) {
		o.offer(record)
	}
	return refusal
}

func refuse(record *v1alpha1.AuditRecord, refusal error) {
	record.Decision, record.Rule, record.Reason = v1alpha1.AuditDenied, ruleUnrecorded, refusal.Error()
}

// beginClosed begins to write to the Closed sinks. kept returns what came of it, one
// result for each sink.
func (p *pipeline) beginClosed(ctx context.Context, record *v1alpha1.AuditRecord) (kept func() []error) {
	waits := make([]func() error, len(p.closed))
	var begun sync.WaitGroup
	for i, o := range p.closed {
		begun.Go(func() { waits[i] = o.begin(ctx, record) })
	}
	begun.Wait()
	return func() []error {
		failures := make([]error, len(waits))
		for i, wait := range waits {
			failures[i] = wait()
		}
		return failures
	}
}

// settleClosed returns why an act is refused, if a Closed sink has failed. It amends the
// record in the others. An act that is denied anyway has another reason.
func (p *pipeline) settleClosed(record *v1alpha1.AuditRecord, failures []error) error {
	failure := errors.Join(failures...)
	if failure == nil {
		return nil
	}
	refusal := extension.Denyf("%s is only allowed when it is recorded, and it cannot be: %w", act.Describe(record), failure)
	amendment := record.DeepCopy()
	amendment.ID, amendment.Amends = record.ID+"-refused", record.ID
	refuse(amendment, refusal)
	for i, o := range p.closed {
		if failures[i] == nil {
			if record.Decision == v1alpha1.AuditAllowed {
				o.offer(amendment)
			}
			continue
		}
		refusals.WithLabelValues(o.Sink.Name()).Inc()
		p.log.Error("not recorded, so refused", append(act.Fields(record), zap.String("sink", o.Sink.Name()), zap.NamedError("failure", failures[i]))...)
	}
	if record.Decision == v1alpha1.AuditDenied {
		return nil
	}
	refuse(record, refusal)
	return refusal
}

// stripes are queues by key, first come first served. Different keys may share a queue.
// Its lock is a channel because a waiting request has a deadline.
type stripes struct {
	seed   maphash.Seed
	queues []stripe
}

// stripe is a queue of records.
type stripe struct {
	lock chan struct{}
	// last is closed when the last record that has left is kept. It belongs to who
	// holds the lock.
	last chan struct{}
}

func newStripes() stripes {
	s := stripes{seed: maphash.MakeSeed(), queues: make([]stripe, 256)}
	for i := range s.queues {
		s.queues[i] = stripe{lock: make(chan struct{}, 1), last: make(chan struct{})}
		close(s.queues[i].last)
	}
	return s
}

// lock returns when a record's turn has come. before is closed when the record before it
// is kept; unlock lets the next record begin, and returns what to close when this one is
// kept.
func (s stripes) lock(ctx context.Context, key string) (unlock func() (after chan<- struct{}), before <-chan struct{}, err error) {
	q := &s.queues[maphash.String(s.seed, key)%uint64(len(s.queues))]
	select {
	case q.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	after := make(chan struct{})
	before, q.last = q.last, after
	return func() chan<- struct{} {
		<-q.lock
		return after
	}, before, nil
}
