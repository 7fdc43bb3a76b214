package collector

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// ended says that the session has ended: its recording is to be sealed, but not before
	// that time.
	ended bool
	due   time.Time
}

// lose looks for a recorder that has left without an end, or whose recording could not be sealed
// yet.
func (c *Collector) lose(session *live, to *recording) {
	c.search(&disconnect{ticket: session.ticket, key: session.key, part: to.number, ended: to.ended(), due: to.settled})
}

// isEnding reports whether a recording is to be sealed here.
func (c *Collector) isEnding(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending[id]
}

func (c *Collector) search(a *disconnect) {
	c.mu.Lock()
	c.left[a.ticket.ID]++
	if a.ended {
		c.ending[a.ticket.ID] = true
	}
	c.mu.Unlock()
	c.await(a)
}

// pause returns the time until the next look.
func (a *disconnect) pause(stall time.Duration, now time.Time) time.Duration {
	if early := a.due.Sub(now); a.ended && early > 0 {
		return early
	}
	return goneStalls * stall << min(a.looks, maxLooks)
}

func (c *Collector) await(a *disconnect) {
	time.AfterFunc(a.pause(c.options.Stall, c.options.Now()), func() {
		if a.looks++; c.done(a) || !a.ended && a.looks == maxLooks {
			c.forgetLeft(a.ticket.ID)
			return
		}
		c.await(a)
	})
}

// done reports whether a recorder has come back, or cannot: its recording is sealed then. One that
// could come back and does not is noted.
func (c *Collector) done(a *disconnect) bool {
	ctx, cancel := stored()
	defer cancel()
	if a.ended { // which no other connection changes
		_, err := c.conclude(ctx, a.ticket, a.key, true)
		return err == nil || errors.Is(err, ErrChanged) || errors.Is(err, fs.ErrNotExist) // which it stays
	}
	c.mu.Lock()
	back := c.live[a.ticket.ID] != nil
	c.mu.Unlock()
	if back {
		return true
	}
	last, sealed, err := lastPart(ctx, c.options.Storage, a.ticket.ID)
	switch {
	case err != nil:
		return false // the storage fails
	case sealed, last != a.part:
		return true // it is with another collector, or deleted
	}
	concluded, err := c.conclude(ctx, a.ticket, a.key, false)
	if concluded && err == nil {
		return true
	}
	a.ended = errors.Is(err, errUnsettled) // then it is to be sealed
	if !concluded && !a.noted {
		a.noted = true
		c.note(a.ticket, a.key, Gone, "the recorder left without an end, and has not come back for %s", goneStalls*c.options.Stall)
	}
	return false
}

// conclude seals a recording whose session has ended, which ended says may be so, or whose recorder
// cannot come back, with what has arrived. The error is errUnsettled if it is too early for that.
func (c *Collector) conclude(ctx context.Context, ticket *protocol.Ticket, key protocol.Key, ended bool) (over bool, err error) {
	reason, why := c.over(ctx, ticket)
	if !ended && reason == "" {
		return false, why
	}
	r := &recording{storage: c.options.Storage, id: ticket.ID, key: key, chain: newChain(ticket.ID)}
	switch _, sealed, err := read(ctx, r.storage, r.id, &r.chain, func(*protocol.Frame) error { return nil }); {
	case err != nil:
		return true, fmt.Errorf("%s: %w: %w", r.id, ErrChanged, err)
	case sealed:
		return true, nil
	case r.end == nil && reason == "":
		return false, why
	case r.end == nil:
		r.end = &protocol.End{Code: 128 + int(syscall.SIGKILL), Reason: limited(reason)}
	}
	redeemed, err := ReadRedeemed(ctx, c.options.Storage, ticket.ID)
	if err != nil {
		return true, err
	}
	r.settled = c.settled(redeemed)
	return true, c.seal(ticket, r)
}

func (c *Collector) forgetLeft(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left[id]--; c.left[id] > 0 {
		return
	}
	delete(c.left, id)
	delete(c.ending, id)
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
