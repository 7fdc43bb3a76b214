package auditevent

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

const (
	// foldInterval is between two writes of a flood: the acts in it wait for each
	// other, so that what a flood writes grows with its time and not with its acts.
	foldInterval = 500 * time.Millisecond
	// foldTimeout is for one write.
	foldTimeout = 2 * time.Second
)

// flood is what one user does beyond the bounds. Its acts are counted in a folded
// AuditEvent, or, when its list is full, in the next.
type flood struct {
	// namespace is that of all acts, "" if they can be in several.
	namespace string

	mu      sync.Mutex
	waiting []waiter
	writing bool
	begun   bool // it has an AuditEvent

	// The following are the writer's alone.

	written time.Time
	// name is the name of the AuditEvent that counts at present, "" if none does.
	name   string
	status v1alpha1.AuditEventStatus
	// last says that no other AuditEvent follows when the list is full.
	last bool
}

type waiter struct {
	record *v1alpha1.AuditRecord
	done   chan error
}

// add returns at once. wait returns when the flood's AuditEvent counts the record.
func (f *flood) add(ctx context.Context, e *events, r *v1alpha1.AuditRecord) (wait func() error) {
	w := waiter{r, make(chan error, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, w)
	if !f.writing {
		f.writing = true
		go f.write(e)
	}
	return func() error {
		select {
		case err := <-w.done:
			return err
		case <-ctx.Done():
			return fmt.Errorf("the flood of %s is not counted yet: %w", r.User.Username, ctx.Err())
		}
	}
}

// exists reports whether the flood has an AuditEvent.
func (f *flood) exists() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun
}

// write writes what waits until nothing does.
func (f *flood) write(e *events) {
	for {
		time.Sleep(time.Until(f.written.Add(foldInterval)))
		f.written = time.Now()
		f.mu.Lock()
		batch := f.waiting
		f.waiting = nil
		f.writing = len(batch) > 0
		f.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for len(batch) > 0 {
			n, err := f.writePage(e, batch)
			for _, w := range batch[:n] {
				w.done <- err
			}
			batch = batch[n:]
		}
	}
}

// writePage counts the first n of a batch in one AuditEvent. It may count an act that
// nobody waits for any more, because it was refused.
func (f *flood) writePage(e *events, batch []waiter) (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), foldTimeout)
	defer cancel()
	first := batch[0].record
	begins := f.name == ""
	if begins || !f.last && !fits(&f.status, first) {
		f.last = !e.bounds.page(first.User.Username)
		begins = begins || !f.last
	}
	if begins {
		if err := e.create(ctx, act.Brief(first), f); err != nil {
			return len(batch), err
		}
		f.name, f.status = first.ID, v1alpha1.AuditEventStatus{}
		f.mu.Lock()
		f.begun = true
		f.mu.Unlock()
	}
	for n < len(batch) && (n == 0 || f.last || fits(&f.status, batch[n].record)) {
		fold(&f.status, batch[n].record)
		n++
	}
	folded.Add(float64(n))
	if begins && n == 1 {
		return n, nil // the record itself says so
	}
	err = e.update(ctx, f.name, f.status)
	if apierrors.IsNotFound(err) {
		f.name = "" // somebody has deleted it
	}
	return n, err
}
