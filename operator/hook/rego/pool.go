package rego

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

const (
	// maxWorkers is how many processes a Pool has by default, at most.
	maxWorkers = 4
	// workerMemory is how many bytes of memory each may have where the process has no limit.
	workerMemory = 1 << 30
	// idleTime is how long a process waits for its next evaluation before it ends.
	idleTime = time.Minute
)

// ErrClosed is the error of an evaluation in a [Pool] that is closed.
var ErrClosed = errors.New("policies are no longer evaluated")

// Pool evaluates policies in processes of their own, which run this program again. A builtin of
// Rego cannot be interrupted: a product of long numbers can take a minute at a timeout of a second.
// A process can. It is killed if it has not answered after one and a half times the timeout, so
// that an evaluation takes a bounded time of a processor. It is reused while it behaves.
//
// A Pool is safe for concurrent use. A program that links this package is its own worker.
type Pool struct {
	memory int64
	// compileTime is how long a process may take to compile a policy.
	compileTime time.Duration
	// slots has a value for each process that may run.
	slots chan struct{}

	mu     sync.Mutex
	idle   []*worker
	busy   map[*worker]bool
	closed bool
	// ended is called with a process that has ended, in tests.
	ended func(*worker)
}

// NewPool returns a Pool of so many processes at most. They start when they are needed. Together
// with this process they stay below its memory limit, if it has one (GOMEMLIMIT): each has an equal
// share. Default: one for each processor, at most 4.
func NewPool(workers int) *Pool {
	workers = cmp.Or(workers, min(runtime.GOMAXPROCS(0), maxWorkers))
	memory := int64(workerMemory)
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		memory = min(memory, limit/int64(workers+1))
	}
	return &Pool{memory: memory, compileTime: compileTime, slots: make(chan struct{}, workers), busy: map[*worker]bool{}}
}

// Compile is [Compile] for a policy that the pool evaluates. One of its processes compiles it first: a policy of 2 KB
// can take for ever, and nothing interrupts that either.
func (p *Pool) Compile(source Source, options Options) (*Policy, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	if err := source.check(); err != nil {
		return nil, err
	}
	text, _ := json.Marshal(compilation{source, options}) // it always marshals
	pooled := Policy{query: source.Query, options: options, pool: p, source: source, key: sha256.Sum256(text)}
	err := p.use(context.Background(), func(w *worker) error { return w.compile(context.Background(), &pooled, p.compileTime) })
	if wrong := (*problem)(nil); errors.As(err, &wrong) { // it says more here, and ends
		if _, told := Compile(source, options); told != nil {
			return nil, told
		}
	}
	if err != nil {
		return nil, err
	}
	return &pooled, nil
}

// Close ends all processes. Evaluations that are under way fail.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	for w := range p.busy {
		w.kill()
	}
	p.mu.Unlock()
	for _, w := range idle {
		if w.timer.Stop() { // else it is ending
			p.end(w)
		}
	}
	for range cap(p.slots) { // until those that were busy have ended
		p.slots <- struct{}{}
	}
	for range cap(p.slots) {
		<-p.slots
	}
}

// evaluate evaluates a policy in a process that is free.
func (p *Pool) evaluate(ctx context.Context, policy *Policy, input []byte, now time.Time) (output []byte, err error) {
	err = p.use(ctx, func(w *worker) (err error) {
		output, err = w.evaluate(ctx, policy, input, now)
		return err
	})
	return output, err
}

// use asks a process that is free.
func (p *Pool) use(ctx context.Context, ask func(*worker) error) error {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for a process that evaluates policies: %w", context.Cause(ctx))
	}
	w, err := p.take()
	if err != nil {
		return err
	}
	defer p.put(w)
	return ask(w)
}

// take returns a process that is idle, or a new one.
func (p *Pool) take() (*worker, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	for last, w := range slices.Backward(p.idle) {
		p.idle = p.idle[:last]
		if w.timer.Stop() { // else it is ending
			p.busy[w] = true
			return w, nil
		}
	}
	w, err := startWorker(p.memory)
	if err != nil {
		return nil, fmt.Errorf("starting a process that evaluates policies: %w", err)
	}
	p.busy[w] = true
	return w, nil
}

// put takes a process back, or ends it if it is of no use any more.
func (p *Pool) put(w *worker) {
	p.mu.Lock()
	delete(p.busy, w)
	keep := !p.closed && w.err == nil
	if keep {
		p.idle = append(p.idle, w)
		w.timer = time.AfterFunc(idleTime, func() { p.expire(w) })
	}
	p.mu.Unlock()
	if !keep {
		p.end(w)
	}
}

// expire ends a process that has been idle for long, unless it has work again.
func (p *Pool) expire(w *worker) {
	p.mu.Lock()
	for i, each := range p.idle {
		if each == w {
			p.idle = append(p.idle[:i:i], p.idle[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	p.end(w)
}

func (p *Pool) end(w *worker) {
	w.end()
	if p.ended != nil {
		p.ended(w)
	}
}
