package limits

import (
	"context"
	"errors"
	"math"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// DefaultMemory is what requests may occupy together in a process without a memory
// limit (GOMEMLIMIT). With one, it is a third of the limit.
const DefaultMemory = 512 << 20

// Memory bounds what the requests of a process occupy together. A request has three
// stages, each with a part of the memory and a rule for when that part is full:
//
//   - Its body arrives (a quarter). The body that has not grown for longest is cut
//     off, first those of connections that have not completed an admission, and of
//     these first those that wait for their client rather than for a processor. What an
//     API server sends arrives at once, so it is never that one.
//   - It waits for memory to be decoded in (a quarter). There the body is complete,
//     so further requests are refused.
//   - It is decoded and answered (half). What that takes is estimated from the body;
//     see Estimate. A request that does not fit waits, in order, until its deadline. One
//     that costs more than a 64th of the memory leaves an eighth to those that cost
//     less, so that a few large ones never delay all others. What it leaves behind is
//     memory until it is collected, so it counts until then: one after the other they
//     would fill the memory faster than the garbage collector, by itself, empties it.
//
// A request that alone is larger than its part is refused as too large; API servers
// are asked to repeat all others.
type Memory struct {
	// The three parts, and how much of two of them large requests may have.
	reading, waiting, running  int64
	largeWaiting, largeRunning int64
	// large is the cost above which a request is large.
	large int64

	mu sync.Mutex
	// What is occupied of the parts.
	isReading, isWaiting, isRunning int64
	// garbage is the part of isRunning that waits for the garbage collector.
	garbage    int64
	collecting bool
	// bodies are the requests whose bodies arrive, those that grew last at the end:
	// of connections that have completed an admission, and others.
	bodies, strangers line[Share]
	// small and big are the requests that wait.
	small, big line[Share]
	// pieces are buffers for parts of bodies; see readLarge.
	pieces [][]byte

	total    int64
	besideOf sync.Once
	beside   *Memory
}

// NewMemory returns a Memory of so many bytes. 0 means a third of the process's memory
// limit (runtime/debug.SetMemoryLimit, GOMEMLIMIT), or DefaultMemory without one. The
// rest is for connections, for what the program itself needs, and for garbage, most of
// which comes of decoding.
func NewMemory(bytes int64) *Memory {
	if bytes == 0 {
		bytes = DefaultMemory
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
			bytes = limit / 3
		}
	}
	return &Memory{
		reading: bytes / 4, waiting: bytes / 4, running: bytes / 2,
		largeWaiting: bytes / 8, largeRunning: bytes * 3 / 8, large: bytes / 64,
		total: bytes,
	}
}

// Beside returns another Memory, always the same, of a quarter as much: for requests that
// must not take any of this one, whatever becomes of them.
func (m *Memory) Beside() *Memory {
	m.besideOf.Do(func() { m.beside = NewMemory(m.total / 4) })
	return m.beside
}

// Share is what one request has of a Memory. A share without a Memory is unbounded.
type Share struct {
	Memory *Memory
	// Owner is cut off when others need the memory.
	Owner interface{ CutOff() }
	// Stranger is true until a connection has completed an admission.
	Stranger bool
	// awaited is true while the server waits for more of the body.
	awaited atomic.Bool

	// ending is held while the share ends, and while its owner is cut off, which only
	// works before: afterwards the answer's writer is not valid any more.
	ending sync.Mutex
	ended  bool

	stage stage
	// bytes is what it has in the stage reading or running, or will have when it runs;
	// waits is what it has while it waits: its body.
	bytes, waits int64
	spot         spot[Share]
	granted      chan struct{} // closed when it need not wait any longer
}

type stage int

const (
	outside stage = iota
	reading
	waiting
	running
	isCutOff
)

// PerRequest is what a request occupies apart from its body and its objects: its
// goroutines, its header and the buffers of its connection. It is measured by
// TestWhatAStalledConnectionTakes.
const PerRequest = 32 << 10

// smallestRead is the least room that a body begins with.
const smallestRead = 4 << 10

// begin begins to read a body. It returns the room to begin with: what is wanted, but
// the less, the less memory is left, so that beginnings alone never fill it.
func (s *Share) begin(wanted int64) int64 {
	m := s.Memory
	if m == nil {
		return wanted
	}
	m.mu.Lock()
	wanted = min(wanted, max((m.reading-m.isReading)/64, smallestRead))
	s.stage = reading
	s.join()
	stalled, _ := m.grow(s, PerRequest+wanted) // it is the one that grew last, so others go first
	m.mu.Unlock()
	endReading(stalled)
	return wanted
}

func (s *Share) join() {
	if s.Stranger {
		s.spot.join(&s.Memory.strangers, s)
	} else {
		s.spot.join(&s.Memory.bodies, s)
	}
}

// grow takes as many bytes as the body has grown by.
func (s *Share) grow(bytes int64) error {
	m := s.Memory
	if m == nil {
		return nil
	}
	stalled, err := m.growBody(s, bytes)
	endReading(stalled)
	return err
}

func (m *Memory) growBody(s *Share, bytes int64) (stalled []*Share, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.stage == isCutOff {
		return nil, ErrStalled
	}
	if s.bytes+bytes > m.reading {
		return nil, tooCostly("reading it", s.bytes+bytes, m.reading)
	}
	// It grows, so it has not stalled: others go first, but those that are known.
	s.join()
	return m.grow(s, bytes)
}

// grow makes room for bytes. It returns those that have stalled longest, which are to
// be cut off for it.
func (m *Memory) grow(s *Share, bytes int64) (stalled []*Share, err error) {
	for m.isReading+bytes > m.reading {
		cut := m.longest()
		if cut == nil || cut == s {
			return stalled, ErrNoMemory
		}
		m.isReading -= cut.bytes
		cut.spot.leave()
		cut.stage, cut.bytes = isCutOff, 0
		stalled = append(stalled, cut)
	}
	s.bytes += bytes
	m.isReading += bytes
	return stalled, nil
}

// longest returns the body that goes first, nil if there is none.
func (m *Memory) longest() *Share {
	for _, line := range []*line[Share]{&m.strangers, &m.bodies} {
		for at := line.first; at != nil; at = at.after {
			if at.who.awaited.Load() {
				return at.who
			}
		}
		if line.first != nil {
			return line.first.who
		}
	}
	return nil
}

// endReading ends the reading of bodies. It does not wait for the goroutines that read,
// which have nothing left to do but to answer. It takes system calls, so nobody may
// hold the lock that all requests need.
func endReading(stalled []*Share) {
	for _, s := range stalled {
		s.ending.Lock()
		if !s.ended {
			s.Owner.CutOff()
		}
		s.ending.Unlock()
	}
}

// wasCutOff reports whether the reading was cut off.
func (s *Share) wasCutOff() bool {
	if s.Memory == nil {
		return false
	}
	s.Memory.mu.Lock()
	defer s.Memory.mu.Unlock()
	return s.stage == isCutOff
}

// mostPieces is how many pieces are kept for the next body: 8 MiB.
const mostPieces = 32

// piece returns an empty piece.
func (s *Share) piece() []byte {
	if m := s.Memory; m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if last := len(m.pieces) - 1; last >= 0 {
			piece := m.pieces[last]
			m.pieces = m.pieces[:last]
			return piece
		}
	}
	return make([]byte, 0, firstRead)
}

// giveBack keeps pieces that nobody uses any more.
func (s *Share) giveBack(pieces [][]byte) {
	m := s.Memory
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, piece := range pieces {
		if cap(piece) == firstRead && len(m.pieces) < mostPieces {
			m.pieces = append(m.pieces, piece[:0])
		}
	}
}

// Admit takes the cost of a request whose body is complete, which includes the body.
// If the memory is occupied, it waits until the deadline or the end of ctx.
func (s *Share) Admit(ctx context.Context, cost int64, deadline time.Time) error {
	m := s.Memory
	if m == nil {
		return nil
	}
	admitted, err := m.admit(s, cost)
	if admitted || err != nil {
		return err
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.granted:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.stage == running { // at the same moment
		return nil
	}
	m.release(s)
	return ErrNoMemory
}

// admit reports whether the request may run; if not, it has joined the line.
func (m *Memory) admit(s *Share, cost int64) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body := s.bytes
	if s.stage == isCutOff {
		return false, ErrStalled
	}
	m.release(s)
	if cost > m.largeRunning {
		return false, tooCostly("decoding it", cost, m.largeRunning)
	}
	s.bytes = cost
	if m.small.length == 0 && (m.big.length == 0 || cost <= m.large) && m.fits(cost) {
		m.run(s)
		return true, nil
	}
	// Those that wait occupy their bodies only.
	line, most := &m.small, m.waiting
	if cost > m.large {
		line, most = &m.big, m.largeWaiting
	}
	if m.isWaiting+body > most {
		s.bytes = 0
		return false, ErrNoMemory
	}
	s.stage, s.waits, s.granted = waiting, body, make(chan struct{})
	m.isWaiting += body
	s.spot.join(line, s)
	m.collect()
	return false, nil
}

// collect collects the garbage of large requests, for which others wait.
func (m *Memory) collect() {
	if m.garbage == 0 || m.collecting {
		return
	}
	m.collecting = true
	garbage := m.garbage
	go func() {
		runtime.GC()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.collecting = false
		m.garbage -= garbage
		m.isRunning -= garbage
		m.wake()
	}()
}

// HasPlenty reports whether half of the memory to run in is left beside a cost.
func (m *Memory) HasPlenty(cost int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isRunning+cost <= m.running/2
}

func (m *Memory) fits(cost int64) bool {
	if cost > m.large {
		return m.isRunning+cost <= m.largeRunning
	}
	return m.isRunning+cost <= m.running
}

func (m *Memory) run(s *Share) {
	s.stage = running
	m.isRunning += s.bytes
}

// Done gives everything back.
func (s *Share) Done() {
	if s.Memory == nil {
		return
	}
	s.ending.Lock()
	s.ended = true
	s.ending.Unlock()
	s.Memory.mu.Lock()
	defer s.Memory.mu.Unlock()
	s.Memory.release(s)
}

// release takes a request out of its stage, and lets those run that fit now.
func (m *Memory) release(s *Share) {
	switch s.stage {
	case reading:
		m.isReading -= s.bytes
	case waiting:
		m.isWaiting -= s.waits
	case running:
		if s.bytes > m.large {
			m.garbage += s.bytes
		} else {
			m.isRunning -= s.bytes
		}
	}
	s.spot.leave()
	s.stage, s.bytes, s.waits = outside, 0, 0
	m.wake()
}

// wake lets those run that fit now. If there is garbage in the way of others, it is
// collected.
func (m *Memory) wake() {
	for _, line := range []*line[Share]{&m.small, &m.big} {
		for line.first != nil && m.fits(line.first.who.bytes) {
			next := line.first.who
			next.spot.leave()
			m.isWaiting -= next.waits
			m.run(next)
			close(next.granted)
		}
	}
	if m.small.length+m.big.length > 0 {
		m.collect()
	}
}

// ErrStalled and ErrNoMemory are the errors of requests that a repetition can help.
var (
	ErrStalled  = failure.New(http.StatusTooManyRequests, "the body stalled while other requests needed the memory; try again in 1 s")
	ErrNoMemory = failure.New(http.StatusTooManyRequests, "other requests occupy the memory for requests; try again in 1 s")
)

func tooCostly(doing string, cost, most int64) error {
	return failure.New(http.StatusRequestEntityTooLarge,
		"%w: %s takes about %d KiB of memory, and one request may take %d KiB; more memory allows more, see MaxMemoryBytes", ErrTooCostly, doing, cost>>10, most>>10)
}

// ErrTooCostly is in the error of a request that alone is larger than its part of the memory.
var ErrTooCostly = errors.New("the request is too large")
