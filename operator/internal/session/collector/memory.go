package collector

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// ownMemory is how many bytes of frames each session may have in memory whatever others
// have, so that who types does not wait for those who print.
const ownMemory = 8 << 10

// memory bounds the bytes of frames that wait to be stored. While there is no room for a
// frame it is not read: the recorder waits, and then its terminal.
type memory struct{ all *semaphore.Weighted }

func newMemory(most int64) *memory { return &memory{semaphore.NewWeighted(most)} }

// share is the memory of one session.
type share struct {
	all *semaphore.Weighted
	// changed is called when the session begins to wait for the storage, by 1, and when that
	// is over, by -1.
	changed func(by int)
	// full says that a frame waits for memory. Its recorder may have much to say.
	full atomic.Bool

	mu     sync.Mutex
	held   hold
	waits  int
	closed bool
}

// hold is memory that was taken.
type hold struct {
	own    int
	shared int64
}

func (h *hold) add(other hold) { h.own, h.shared = h.own+other.own, h.shared+other.shared }

func (m *memory) share(changed func(by int)) *share { return &share{all: m.all, changed: changed} }

// take waits until there is room for a frame.
func (s *share) take(ctx context.Context, size int) (hold, error) {
	if taken, ok := s.takeOwn(size); ok {
		return taken, nil
	}
	taken := hold{shared: int64(size)}
	if !s.all.TryAcquire(taken.shared) {
		s.full.Store(true)
		s.wait(1)
		err := s.all.Acquire(ctx, taken.shared)
		s.wait(-1)
		s.full.Store(false)
		if err != nil {
			return hold{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.all.Release(taken.shared)
		return hold{}, context.Canceled
	}
	s.held.add(taken)
	return taken, nil
}

func (s *share) takeOwn(size int) (hold, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held.own+size > ownMemory {
		return hold{}, false
	}
	taken := hold{own: size}
	s.held.add(taken)
	return taken, true
}

// give gives memory back.
func (s *share) give(back hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.held.add(hold{-back.own, -back.shared})
	s.all.Release(back.shared)
}

// close gives all memory back.
func (s *share) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.all.Release(s.held.shared)
	s.held = hold{}
}

// wait counts what waits for the storage. The session waits as long as something does.
func (s *share) wait(by int) {
	s.mu.Lock()
	waited := s.waits > 0
	s.waits += by
	waits := s.waits > 0
	s.mu.Unlock()
	switch {
	case waits && !waited:
		s.changed(1)
	case !waits && waited:
		s.changed(-1)
	}
}
