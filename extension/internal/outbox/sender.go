package outbox

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Sender sends what a queue holds: in order, in batches, and at least once.
type Sender struct {
	Queue *Queue
	// BatchSize and BatchBytes are how many items and bytes a batch has at most.
	BatchSize, BatchBytes int
	// Backoff is the pause after the first failure. It doubles up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	Clock               clock.Clock
	Log                 *zap.Logger
	// Send sends a batch. Its failure is a *Failure if the receiver's answer says more.
	Send func(ctx context.Context, items [][]byte) error
	// Rejected is called for an item that the receiver takes neither with others nor
	// alone. It is not sent again.
	Rejected func(item []byte, err error)
	// Left is called with how many items wait when that has changed.
	Left func(items int)
}

var _ manager.LeaderElectionRunnable = (*Sender)(nil)

// NeedLeaderElection is false: each replica has a queue of its own.
func (*Sender) NeedLeaderElection() bool { return false }

// lastAttempt bounds the delivery at the end. The rest stays on disk.
const lastAttempt = 5 * time.Second

// Start sends until ctx ends, and then once more.
func (s *Sender) Start(ctx context.Context) error {
	s.Left(s.Queue.Len())
	for s.next(ctx) {
		backoff := wait.Backoff{Duration: s.Backoff, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: s.MaxBackoff}
		for err := s.send(ctx); err != nil; err = s.send(ctx) {
			if ctx.Err() != nil || !s.pause(ctx, err, backoff.Step()) {
				break
			}
		}
	}
	s.finish(ctx)
	return nil
}

// next waits until the queue has an item, and reports false when ctx ends first.
func (s *Sender) next(ctx context.Context) bool {
	select {
	case <-s.Queue.Ready():
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// pause waits after a failure, as long as the receiver asks for if it does, and
// reports false when ctx ends first.
func (s *Sender) pause(ctx context.Context, err error, pause time.Duration) bool {
	log := s.Log.Warn
	if failure, ok := errors.AsType[*Failure](err); ok {
		pause = max(pause, min(failure.After, s.MaxBackoff))
		if !failure.passes() {
			log = s.Log.Error
		}
	}
	log("batch not delivered", zap.Error(err), zap.Duration("retryIn", pause), zap.Int("undelivered", s.Queue.Len()))
	timer := s.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// finish empties the queue when the manager stops, as far as time allows.
func (s *Sender) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAttempt)
	defer cancel()
	for s.Queue.Len() > 0 {
		if err := s.send(ctx); err != nil {
			s.Log.Warn("what is undelivered stays in the queue", zap.Int("undelivered", s.Queue.Len()), zap.Error(err))
			return
		}
	}
}

// send sends the first batch of the queue.
func (s *Sender) send(ctx context.Context) error {
	names, items, err := s.Queue.First(s.BatchSize, s.BatchBytes)
	if err != nil || len(names) == 0 {
		return err
	}
	err = s.Send(ctx, items)
	if IsRejected(err) {
		return s.sendOneByOne(ctx, names, items)
	}
	if err != nil {
		return err
	}
	return s.done(names)
}

// sendOneByOne finds the items of a batch that the receiver rejects, so that they do
// not hold up the others.
func (s *Sender) sendOneByOne(ctx context.Context, names []string, items [][]byte) error {
	for i := range names {
		err := s.Send(ctx, items[i:i+1])
		if IsRejected(err) {
			s.Rejected(items[i], err)
		} else if err != nil {
			return err
		}
		if err := s.done(names[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sender) done(names []string) error {
	err := s.Queue.Remove(names)
	s.Left(s.Queue.Len())
	return err
}
