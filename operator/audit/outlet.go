package audit

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

// lanes is how many queued records a sink writes at the same time.
const lanes = 8

// outlet is a sink in use: with its queue, its deadline and its metrics.
type outlet struct {
	SinkOptions
	clock clock.Clock
	log   *zap.Logger

	seed  maphash.Seed
	queue [lanes]chan *v1alpha1.AuditRecord
	// waiting is the number of records in all lanes of the queue, and of those that are
	// being written.
	waiting atomic.Int64
	// mu is held for reading while a record is put into the queue, so that none is
	// put there after its reader has gone.
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
	name := o.Sink.Name()
	o.log = mgr.GetLogger().Desugar().Named("audit").With(zap.String("sink", name))
	// Alerts watch these from zero on.
	sink.BeginLost(name)
	refusals.WithLabelValues(name)
	sinkDuration.WithLabelValues(name)
	queueDepth.WithLabelValues(name)
	if hosted, ok := o.Sink.(extension.Hosted); ok {
		if err := hosted.Register(mgr); err != nil {
			return fmt.Errorf("sink %s: %w", name, err)
		}
	}
	return mgr.GetKubeManager().Add(&writer{o})
}

// begin begins to write a record within the sink's deadline. It returns when the next
// record of the Pod may begin. wait, which must be called, returns when it is kept.
func (o *outlet) begin(ctx context.Context, record *v1alpha1.AuditRecord) (wait func() error) {
	start := o.clock.Now()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	kept := func() error { return nil }
	begun := o.try(func() (err error) {
		if batching, ok := o.Sink.(sink.Batching); ok {
			kept = batching.Begin(ctx, record)
			return nil
		}
		return o.Sink.Write(ctx, record)
	})
	return func() error {
		defer cancel()
		err := begun
		if err == nil {
			err = o.try(kept)
		}
		sinkDuration.WithLabelValues(o.Sink.Name()).Observe(o.clock.Since(start).Seconds())
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("audit sink %s did not take the record within %s: %w", o.Sink.Name(), o.Timeout, err)
		}
		return fmt.Errorf("audit sink %s: %w", o.Sink.Name(), err)
	}
}

// try turns a panic of the sink into an error. Outside the request's goroutine
// the panic would end the manager.
func (o *outlet) try(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the sink panicked: %v", r)
			o.log.Error("sink panicked", zap.Any("panic", r), zap.Stack("stack"))
		}
	}()
	return do()
}

// offer puts a record into the queue. It blocks only while the manager stops:
// then the queue has no readers, and offer writes the record itself.
func (o *outlet) offer(record *v1alpha1.AuditRecord) {
	o.mu.RLock()
	if o.stopped {
		o.mu.RUnlock()
		o.deliver(record)()
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
	o.queue[maphash.String(o.seed, act.Lane(record))%lanes] <- record
}

// deliver writes a record for which no act waits. It returns when the next record of
// the Pod may begin; wait returns when this one is kept or lost.
func (o *outlet) deliver(record *v1alpha1.AuditRecord) (wait func()) {
	kept := o.begin(context.Background(), record)
	return func() {
		if err := kept(); err != nil {
			o.lose(record, err)
		}
	}
}

// lose counts a record that the sink did not keep, and logs all of it. It bypasses
// zap.Logger, which can leave out lines that are like others.
func (o *outlet) lose(record *v1alpha1.AuditRecord, err error) {
	sink.CountLost(o.Sink.Name())
	core := o.log.Core()
	if !core.Enabled(zapcore.ErrorLevel) {
		return
	}
	entry := zapcore.Entry{Level: zapcore.ErrorLevel, Time: o.clock.Now(), LoggerName: o.log.Name(), Message: "record lost"}
	_ = core.Write(entry, []zap.Field{zap.Error(err), zap.Any("record", record)}) // nothing else can report it
}

// writer writes the records in an outlet's queue.
type writer struct{ *outlet }

var _ manager.LeaderElectionRunnable = (*writer)(nil)

// NeedLeaderElection is false: every replica answers admissions.
func (*writer) NeedLeaderElection() bool { return false }

// Start writes records until ctx ends, and then the rest of the queue.
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
	var delivered sync.WaitGroup
	defer delivered.Wait()
	for record := range lane {
		wait := w.deliver(record)
		done := func() {
			wait()
			w.waiting.Add(-1)
			queueDepth.WithLabelValues(w.Sink.Name()).Dec()
		}
		if _, ok := w.Sink.(sink.Batching); ok {
			delivered.Go(done)
		} else {
			done()
		}
	}
}
