package collector

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Limits say when a session ends.
type Limits struct {
	// End is when it ends, and Reason why. The zero time is no end.
	End    time.Time
	Reason string
	// Max is how long it may take. Idle is for how long the user may do nothing: neither
	// type nor, without a terminal, send or receive. 0 is for ever.
	Max, Idle time.Duration
}

// LimitsOf returns what a ticket says.
func LimitsOf(ticket *protocol.Ticket) Limits {
	return Limits{Max: time.Duration(ticket.Terms.Max) * time.Second, Idle: time.Duration(ticket.Terms.Idle) * time.Second}
}

// end returns the end of a session that began then. It is zero if there is none.
func (l Limits) end(began time.Time) (end time.Time, reason string) {
	end, reason = l.End, l.Reason
	if most := began.Add(l.Max); l.Max > 0 && (end.IsZero() || most.Before(end)) {
		end, reason = most, protocol.ReasonMax
	}
	return end, reason
}

const (
	// overdueTime is after how long it is noted that a session has not ended. A recorder that
	// does all that it should may take most of it to kill what is left.
	overdueTime = 10 * time.Second
	// goneStalls is after how many times Stall it is noted that a recorder has not come back:
	// it may first try a collector that is gone.
	goneStalls = 3
	// maxReason is the most bytes of the reason for which a session has ended.
	maxReason = 8 << 10
)

// live is a session with a connection.
type live struct {
	collector *Collector
	ticket    *protocol.Ticket
	key       protocol.Key
	began     time.Time
	conn      net.Conn
	write     sync.Mutex
	// limiting is held while the session gets limits, which are the latest.
	limiting sync.Mutex
	limits   *Limits
	// stopped is why the session was ended whatever the limits are, "" if it was not.
	stopped string

	mu sync.Mutex
	// active is when the user did something for the last time.
	active time.Time
	bytes  int64
	// overdue fires when the session should have ended.
	overdue  *time.Timer
	released bool
	// told says that the recorder was told that its recording is too large, which had so many bytes then.
	told      bool
	toldAfter int64
}

// limitLocked tells the recorder when the session ends. The recorder ends it; so it ends on
// time without a connection, too. The caller holds limiting.
func (l *live) limitLocked(to Limits) {
	l.limits = &to
	if l.stopped != "" { // no limit makes it go on
		return
	}
	now := l.collector.options.Now()
	end, reason := to.end(l.began)
	left := end.Sub(now)
	switch {
	case end.IsZero():
		l.watch(0, false)
		left = 0
	case left <= 0:
		l.watch(0, true)
		_ = l.send(&protocol.Frame{Type: protocol.Stop, Data: []byte(limited(reason))}) // or the connection is broken
		return
	default:
		l.watch(left, true)
		left = max(left, time.Microsecond)
	}
	text, _ := json.Marshal(protocol.Limits{Left: left.Microseconds(), Reason: limited(reason), Idle: int64(to.Idle / time.Second)}) // always marshals
	_ = l.send(&protocol.Frame{Type: protocol.Until, Data: text})                                                                    // or the connection is broken
}

// stop ends the session now.
func (l *live) stop(reason string) error {
	l.limiting.Lock()
	defer l.limiting.Unlock()
	return l.stopLocked(reason)
}

// stopLocked tells the recorder to end the session, and watches whether it does. The caller
// holds limiting.
func (l *live) stopLocked(reason string) error {
	l.stopped = reason
	l.watch(0, true)
	return l.send(&protocol.Frame{Type: protocol.Stop, Data: []byte(limited(reason))})
}

// limited cuts a text to what a line may have.
func limited(text string) string { return text[:min(len(text), 4<<10)] }

// watch notes it if the session is still connected some time after its end. Connecting anew gives
// no more time.
func (l *live) watch(left time.Duration, ends bool) {
	within := l.collector.overdue
	if ends {
		left = l.collector.leftUntil(l.ticket.ID, left)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overdue != nil {
		l.overdue.Stop()
		l.overdue = nil
	}
	if ends && !l.released {
		cut := l.stopped == reasonContested
		l.overdue = time.AfterFunc(left+within, func() {
			if cut { // who has taken its place need not listen
				_ = l.conn.Close()
			}
			l.collector.note(l.ticket, l.key, Overdue, "the session had to end %s ago, and goes on", within)
		})
	}
}

func (l *live) release() {
	l.mu.Lock()
	l.released = true
	l.mu.Unlock()
	l.watch(0, false)
}

func (l *live) send(f *protocol.Frame) error {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(DefaultSilence)); err != nil {
		return err
	}
	_, err := l.conn.Write(f.Append(nil))
	return err
}

// heard is called with each frame.
func (l *live) heard(f *protocol.Frame, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += int64(len(f.Data))
	if at, ok := protocol.ActivityOf(f); ok && f.Type == protocol.Alive {
		if active := now.Add(at - f.At); active.After(l.active) {
			l.active = active
		}
	}
}

// errSilent is the error of a recorder that says nothing.
var errSilent = errors.New("the recorder says nothing")

// arrival is what the connection brings next.
type arrival struct {
	frame protocol.Frame
	hold  hold
	err   error
}

// arrives reads the next frame once there is memory for it.
func arrives(ctx context.Context, from *bufio.Reader, memory *share) (next arrival) {
	var size int
	if size, next.err = protocol.Next(from); next.err != nil {
		return next
	}
	if next.hold, next.err = memory.take(ctx, size); next.err != nil {
		return next
	}
	next.frame, next.err = protocol.Read(from)
	return next
}

// read reads frames until the connection breaks, or nobody takes them any more.
func (l *live) read(ctx context.Context, from *bufio.Reader, to chan<- arrival, memory *share) {
	for {
		next := arrives(ctx, from, memory)
		select {
		case to <- next:
		case <-ctx.Done():
			return
		}
		if next.err != nil {
			return
		}
	}
}

// receive stores what the recorder sends, and acknowledges it once it is stored. As long as
// the storage is slow it takes nothing, and the terminal waits.
func (c *Collector) receive(session *live, from *bufio.Reader, to *recording) error {
	memory := c.memory.share(c.options.Observer.Waiting)
	defer memory.close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	arrivals := make(chan arrival, 8)
	go session.read(ctx, from, arrivals, memory)
	var held hold
	stall, silence := time.NewTimer(c.options.Stall), time.NewTimer(c.options.Silence)
	defer stall.Stop()
	defer silence.Stop()
	var gather <-chan time.Time
	for !to.ended() {
		select {
		case next := <-arrivals:
			if err := c.take(session, to, &next); err != nil {
				return c.flushed(to, err)
			}
			held.add(next.hold)
			if delay := c.options.Storage.Delay(); gather == nil && delay > 0 {
				gather = time.After(delay)
			}
			if (gather != nil || len(arrivals) > 0) && to.pending() > 0 && to.pending() < batch && !to.ended() {
				continue
			}
		case <-gather:
		case <-stall.C:
			if !unheard(memory, arrivals) {
				go c.note(session.ticket, session.key, Silent, "the recorder has said nothing for %s", c.options.Stall)
			}
			continue
		case <-silence.C:
			if unheard(memory, arrivals) {
				silence.Reset(c.options.Silence)
				continue
			}
			return errSilent
		}
		gather = nil
		memory.wait(1)
		err := c.store(session, to)
		memory.wait(-1)
		if err != nil {
			return err
		}
		memory.give(held)
		held = hold{}
		stall.Reset(c.options.Stall)
		silence.Reset(c.options.Silence)
	}
	return nil
}

// unheard reports whether it is the collector that does not listen, and not the recorder that
// says nothing.
func unheard(memory *share, arrivals <-chan arrival) bool {
	return memory.full.Load() || len(arrivals) > 0
}

// take adds what has arrived to the recording.
func (c *Collector) take(session *live, to *recording, next *arrival) error {
	if next.err != nil {
		return next.err
	}
	f := &next.frame
	session.heard(f, c.options.Now())
	if err := c.check(session, to, f); err != nil {
		return err
	}
	c.redacted(f)
	isNew := f.Seq == to.next
	err := to.add(f)
	if lost, ok := protocol.LostOf(f); ok && isNew && err == nil {
		c.options.Observer.Lost(lost)
	}
	return err
}

// check refuses what a recorder does not send: a recording begins with the command of its
// ticket, so that whoever takes a ticket of somebody else cannot invent one, or with a gap if
// the session might begin without a collector. A recording that is too large ends its session.
func (c *Collector) check(session *live, to *recording, f *protocol.Frame) error {
	switch {
	case f.Seq == 0 && f.Type != protocol.Alive, f.Type == protocol.Mark:
		return fmt.Errorf("%w: only a collector sends it", protocol.ErrFrame)
	case f.Seq == 1 && f.Type != protocol.Begin && (f.Type != protocol.Gap || session.ticket.Terms.Closed), f.Seq > 1 && f.Type == protocol.Begin:
		return fmt.Errorf("%w: the session begins with it, and only then", protocol.ErrFrame)
	case f.Type == protocol.Exit:
		return checkEnd(f.Data)
	}
	if err := checkContent(session.ticket, f); err != nil {
		return err
	}
	over, size := "", to.size()
	if f.Seq == to.next { // else nothing is stored
		over = c.quota.add(session.ticket.User, f.Size())
	}
	if size > c.options.MaxBytes {
		over = "its recording is too large"
	}
	switch {
	case size > c.options.MaxBytes+spareBytes, session.told && size > session.toldAfter+spareBytes:
		return fmt.Errorf("%w: the recording is too large", protocol.ErrFrame)
	case over != "" && !session.told:
		session.told, session.toldAfter = true, size
		return session.stop(over)
	}
	return nil
}

// checkContent refuses what could not be read later, or would be read as something else.
func checkContent(ticket *protocol.Ticket, f *protocol.Frame) (err error) {
	switch f.Type {
	case protocol.Begin:
		return checkHead(ticket, f.Data)
	case protocol.Resize:
		err = json.Unmarshal(f.Data, &protocol.Size{})
	case protocol.Stream:
		err = json.Unmarshal(f.Data, &protocol.StreamSum{})
	case protocol.File:
		err = json.Unmarshal(f.Data, &protocol.FileSum{})
	}
	if err != nil {
		return fmt.Errorf("%w: %q is no JSON: %w", protocol.ErrFrame, f.Type, err)
	}
	return nil
}

// checkHead refuses the beginning of another session.
func checkHead(ticket *protocol.Ticket, data []byte) error {
	var head protocol.Head
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("%w: a beginning that is no JSON: %w", protocol.ErrFrame, err)
	}
	if sum := protocol.Sum(head.Command); sum != ticket.Command && (ticket.Shown == "" || sum != ticket.Shown) {
		return fmt.Errorf("%w: the command is not that of the ticket", protocol.ErrFrame)
	}
	return nil
}

// checkEnd bounds what everybody reads who lists sessions.
func checkEnd(data []byte) error {
	var end protocol.End
	if err := json.Unmarshal(data, &end); err != nil {
		return fmt.Errorf("%w: an end that is no JSON: %w", protocol.ErrFrame, err)
	}
	if len(end.Reason) > maxReason {
		return fmt.Errorf("%w: the reason of the end has %d bytes, and may have %d", protocol.ErrFrame, len(end.Reason), maxReason)
	}
	if end.Code < 0 || end.Code > 255 || min(end.Signal, end.Killed, end.Left) < 0 {
		return fmt.Errorf("%w: an end with numbers that no command has", protocol.ErrFrame)
	}
	return nil
}

// spareBytes is what a recorder may still send after it was told to end.
const spareBytes = 4 << 20

// flushed stores what has arrived before an error.
func (c *Collector) flushed(to *recording, err error) error {
	if to.pending() > 0 {
		_ = c.measured(to.flush) // else it is sent again
	}
	return err
}

// measured tells the observer what the storage does.
func (c *Collector) measured(store func() error) error {
	began := time.Now()
	err := store()
	c.options.Observer.Stored(time.Since(began), err)
	return err
}

// store stores what has arrived, and acknowledges it.
func (c *Collector) store(session *live, to *recording) error {
	if to.pending() > 0 {
		if err := c.measured(to.flush); err != nil {
			return err
		}
	}
	if to.ended() {
		if left := to.end.Left; left > 0 && !to.sealed { // before the seal, which has it
			c.note(session.ticket, session.key, Left, "the session has ended, and %d of its processes could not be ended", left)
		}
		if err := c.seal(session.ticket, to); err != nil && !errors.Is(err, errUnsettled) {
			return err
		}
	}
	return session.send(&protocol.Frame{Type: protocol.Ack, Seq: to.next - 1})
}
