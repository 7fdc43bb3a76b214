package audit

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// lanes is how many records a sink writes at once behind the acts.
const lanes = 8

// outlet is a sink in use: its queue, its deadline and its metrics.
type outlet struct {
	SinkOptions
	clock clock.Clock
	log   *zap.Logger

	seed  maphash.Seed
	queue [lanes]chan *v1alpha1.AuditRecord
	// waiting is how many records are in the queue, in all lanes.
	waiting atomic.Int64
	// mu is held for reading by those who put records into the queue, so that
	// none comes in when its reader has gone.
	mu      sync.RWMutex
	stopped bool
}

func newOutlet(options SinkOptions, clock clock.Clock) *outlet {
	o := &outlet{SinkOptions: options, clock: clock, seed: maphash.MakeSeed(), log: zap.NewNop()}
	for i := range o.queue {
		o.queue[i] = make(chan *v1alpha1.AuditRecord, options.QueueLength)
	}
	return o
}

func (o *outlet) register(mgr extension.Manager) error {
	o.log = mgr.GetLogger().Desugar().Named("audit").With(zap.String("sink", o.Sink.Name()))
	if registrar, ok := o.Sink.(extension.Hosted); ok {
		if err := registrar.Register(mgr); err != nil {
			return err
		}
	}
	return mgr.GetKubeManager().Add(&writer{o})
}

// write writes a record now, within the sink's deadline.
func (o *outlet) write(ctx context.Context, record *v1alpha1.AuditRecord) error {
	start := o.clock.Now()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	err := o.try(ctx, record)
	sinkDuration.WithLabelValues(o.Sink.Name()).Observe(o.clock.Since(start).Seconds())
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("audit sink %s did not take the record within %s: %w", o.Sink.Name(), o.Timeout, err)
	}
	return fmt.Errorf("audit sink %s: %w", o.Sink.Name(), err)
}

// try makes a panic of the sink an error: it is not in the goroutine of the
// request, so that it would end the manager.
func (o *outlet) try(ctx context.Context, record *v1alpha1.AuditRecord) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it panicked: %v", r)
			o.log.Error("sink panicked", zap.Any("panic", r), zap.Stack("stack"))
		}
	}()
	return o.Sink.Write(ctx, record)
}

// offer puts a record into the queue, or, when the queue's readers have gone
// because the manager is stopping, writes it at once. It does not block an act
// that is under way otherwise.
func (o *outlet) offer(record *v1alpha1.AuditRecord) {
	o.mu.RLock()
	if o.stopped {
		o.mu.RUnlock()
		o.deliver(record)
		return
	}
	defer o.mu.RUnlock()
	if o.waiting.Add(1) > int64(o.QueueLength) {
		o.waiting.Add(-1)
		o.lose(record, fmt.Errorf("%d records wait already", o.QueueLength))
		return
	}
	queueDepth.WithLabelValues(o.Sink.Name()).Inc()
	// A lane has room for all that may wait, so this does not block.
	o.queue[maphash.String(o.seed, laneKey(record))%lanes] <- record
}

// deliver writes a record that no act waits for.
func (o *outlet) deliver(record *v1alpha1.AuditRecord) {
	if err := o.write(context.Background(), record); err != nil {
		o.lose(record, err)
	}
}

// lose counts and logs a record that the sink does not have. The log line has
// all of it.
func (o *outlet) lose(record *v1alpha1.AuditRecord, err error) {
	lost.WithLabelValues(o.Sink.Name()).Inc()
	o.log.Error("record lost", append(fields(record), zap.Error(err))...)
}

// writer writes what is in an outlet's queue, in every replica: each has its
// own.
type writer struct{ *outlet }

var _ manager.LeaderElectionRunnable = (*writer)(nil)

// NeedLeaderElection is false: every replica answers admissions.
func (*writer) NeedLeaderElection() bool { return false }

// Start writes records until ctx ends, and then those that still wait.
func (w *writer) Start(ctx context.Context) error {
	var wait sync.WaitGroup
	for _, lane := range w.queue {
		wait.Go(func() { w.run(lane) })
	}
	<-ctx.Done()
	w.mu.Lock()
	w.stopped = true
	for _, lane := range w.queue {
		close(lane)
	}
	w.mu.Unlock()
	wait.Wait()
	return nil
}

func (w *writer) run(lane <-chan *v1alpha1.AuditRecord) {
	for record := range lane {
		w.waiting.Add(-1)
		queueDepth.WithLabelValues(w.Sink.Name()).Dec()
		w.deliver(record)
	}
}
