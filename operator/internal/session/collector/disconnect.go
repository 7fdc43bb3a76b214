package collector

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// maxLooks is how often a collector looks for a recorder that has left without an end: a pause
// after it left, and then each time after twice the pause. With defaults that is for 15 minutes.
const maxLooks = 6

// disconnect is a recorder that has left without an end.
type disconnect struct {
	ticket *protocol.Ticket
	key    protocol.Key
	part   int // the last one that it has begun
	looks  int
	noted  bool
}

// lose looks for a recorder that has left without an end.
func (c *Collector) lose(session *live, part int) {
	c.mu.Lock()
	c.left[session.ticket.ID]++
	c.mu.Unlock()
	c.await(&disconnect{ticket: session.ticket, key: session.key, part: part})
}

func (c *Collector) await(a *disconnect) {
	time.AfterFunc(goneStalls*c.options.Stall<<a.looks, func() {
		if a.looks++; c.settled(a) || a.looks == maxLooks {
			c.forgetLeft(a.ticket.ID)
			return
		}
		c.await(a)
	})
}

// settled reports whether a recorder has come back, or cannot: its recording is sealed then. One
// that could come back and does not is noted.
func (c *Collector) settled(a *disconnect) bool {
	c.mu.Lock()
	back := c.live[a.ticket.ID] != nil
	c.mu.Unlock()
	if back {
		return true
	}
	ctx, cancel := stored()
	defer cancel()
	last, sealed, err := lastPart(ctx, c.options.Storage, a.ticket.ID)
	switch {
	case err != nil:
		return false // the storage fails
	case sealed, last != a.part:
		return true // it is with another collector, or deleted
	}
	concluded, err := c.conclude(ctx, a.ticket, a.key)
	if concluded && err == nil {
		return true
	}
	if !concluded && !a.noted {
		a.noted = true
		c.note(a.ticket, a.key, Gone, "the recorder left without an end, and has not come back for %s", goneStalls*c.options.Stall)
	}
	return false
}

// conclude seals a recording whose recorder cannot come back, with what has arrived.
func (c *Collector) conclude(ctx context.Context, ticket *protocol.Ticket, key protocol.Key) (over bool, err error) {
	reason, err := c.options.Over(ctx, ticket)
	if err != nil || reason == "" {
		return false, err
	}
	r := &recording{storage: c.options.Storage, id: ticket.ID, key: key, chain: newChain(ticket.ID)}
	switch _, sealed, err := read(ctx, r.storage, r.id, &r.chain, func(*protocol.Frame) error { return nil }); {
	case err != nil:
		return true, fmt.Errorf("%s: %w: %w", r.id, ErrChanged, err)
	case sealed:
		return true, nil
	}
	if r.end == nil {
		r.end = &protocol.End{Code: 128 + int(syscall.SIGKILL), Reason: limited(reason)}
	}
	seal, err := r.seal(c.options.Now())
	if err == nil {
		c.options.Ended(ticket, seal)
	}
	return true, err
}

func (c *Collector) forgetLeft(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left[id]--; c.left[id] > 0 {
		return
	}
	delete(c.left, id)
	if c.live[id] == nil {
		delete(c.ends, id)
	}
}

// leftUntil returns the time until the end of a session. One that has passed counts from when it
// was seen first, however often the recorder connects anew.
func (c *Collector) leftUntil(id string, left time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left > 0 {
		delete(c.ends, id)
		return left
	}
	now := time.Now()
	if c.ends[id].IsZero() {
		c.ends[id] = now
	}
	return c.ends[id].Sub(now)
}
