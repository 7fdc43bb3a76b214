package cloudevents

import (
	"context"
	"errors"
	"math"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// delivery sends the events of the queue.
type delivery struct{ *Sender }

var _ manager.LeaderElectionRunnable = (*delivery)(nil)

// NeedLeaderElection is false: each replica has a queue of its own.
func (*delivery) NeedLeaderElection() bool { return false }

// lastAttempt bounds the delivery at the end. The rest stays on disk.
const lastAttempt = 5 * time.Second

// Start delivers until ctx ends, and then once more.
func (d *delivery) Start(ctx context.Context) error {
	for d.next(ctx) {
		backoff := d.backoff()
		for err := d.send(ctx); err != nil; err = d.send(ctx) {
			if ctx.Err() != nil || !d.pause(ctx, err, backoff.Step()) {
				break
			}
		}
	}
	d.finish(ctx)
	return nil
}

// next waits until the queue has an event, and reports false when ctx ends first.
func (d *delivery) next(ctx context.Context) bool {
	select {
	case <-d.queue.Ready():
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (d *delivery) backoff() wait.Backoff {
	return wait.Backoff{Duration: d.options.Backoff, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: d.options.MaxBackoff}
}

// pause waits after a failure, as long as the endpoint asks for if it does, and
// reports false when ctx ends first.
func (d *delivery) pause(ctx context.Context, failure error, pause time.Duration) bool {
	if later, ok := errors.AsType[*busy](failure); ok {
		pause = max(pause, min(later.after, d.options.MaxBackoff))
	}
	level := zapcore.WarnLevel
	if _, refused := errors.AsType[*refusal](failure); refused {
		level = zapcore.ErrorLevel // it does not pass by itself
	}
	d.log.Log(level, "batch not delivered", zap.Error(failure), zap.Duration("retryIn", pause), zap.Int("undelivered", d.queue.Len()))
	timer := d.options.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// finish empties the queue when the manager stops, as far as time allows.
func (d *delivery) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAttempt)
	defer cancel()
	for d.queue.Len() > 0 {
		if err := d.send(ctx); err != nil {
			d.log.Warn("events stay in the queue", zap.Int("undelivered", d.queue.Len()), zap.Error(err))
			return
		}
	}
}

// send sends the first batch of the queue.
func (d *delivery) send(ctx context.Context) error {
	names, events, err := d.queue.First(d.options.BatchSize, math.MaxInt)
	if err != nil || len(names) == 0 {
		return err
	}
	err = d.post(ctx, events)
	if _, rejected := errors.AsType[*rejection](err); rejected {
		return d.sendOneByOne(ctx, names, events)
	}
	if err != nil {
		return err
	}
	return d.done(names)
}

// sendOneByOne finds the events of a batch that the endpoint rejects, so that
// they do not hold up the others.
func (d *delivery) sendOneByOne(ctx context.Context, names []string, events [][]byte) error {
	for i := range names {
		err := d.post(ctx, events[i:i+1])
		if _, lost := errors.AsType[*rejection](err); lost {
			rejected.WithLabelValues(d.options.Name).Inc()
			d.log.Error("event lost: the endpoint rejects it", zap.ByteString("event", events[i]), zap.Error(err))
			d.options.Rejected(events[i])
		} else if err != nil {
			return err
		}
		if err := d.done(names[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (d *delivery) done(names []string) error {
	err := d.queue.Remove(names)
	d.countUndelivered()
	return err
}
