//go:build linux

package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// warnings are when the user hears that the session will end.
var warnings = []struct {
	before time.Duration
	text   string
}{{5 * time.Minute, "5 minutes"}, {time.Minute, "1 minute"}}

// limiter has the timers of a session's limits.
type limiter struct {
	mu sync.Mutex
	// limits are the latest.
	limits protocol.Limits
	timers []*time.Timer
	idle   *time.Timer
	ended  bool
	// collected says that a collector has set limits, which count from then on.
	collected bool
}

// begin goes by the limits of the ticket, until a collector sets others.
func (s *session) begin() {
	s.limits.mu.Lock()
	collected := s.limits.collected
	s.limits.mu.Unlock()
	terms := &s.ticket.Terms
	if collected || terms.Max == 0 && terms.Idle == 0 {
		return
	}
	left := time.Duration(terms.Max)*time.Second - time.Since(s.sender.began)
	of := protocol.Limits{Reason: protocol.ReasonMax, Idle: terms.Idle}
	if terms.Max > 0 {
		of.Left = max(left.Microseconds(), 1)
	}
	s.arm(of, false)
}

// limit is called when a collector sets limits.
func (s *session) limit(to protocol.Limits) { s.arm(to, true) }

// arm sets the timers by which the session ends, in place of those before.
func (s *session) arm(to protocol.Limits, collected bool) {
	l := &s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.collected && !collected {
		return
	}
	l.clear()
	l.limits, l.collected = to, collected
	if to.Left > 0 {
		left := time.Duration(to.Left) * time.Microsecond
		for _, each := range warnings {
			if left > each.before {
				line := fmt.Sprintf("This session ends in %s: %s.", each.text, to.Reason)
				l.timers = append(l.timers, time.AfterFunc(left-each.before, func() { s.say(line) }))
			}
		}
		l.timers = append(l.timers, time.AfterFunc(left, func() { s.stop(to.Reason) }))
	}
	if to.Idle > 0 {
		l.idle = time.AfterFunc(time.Duration(to.Idle)*time.Second-s.sender.idle(), s.checkIdle)
	}
}

// checkIdle ends the session if the user does nothing, and else looks again when that could
// be so.
func (s *session) checkIdle() {
	l := &s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.idle == nil {
		return
	}
	most := time.Duration(l.limits.Idle) * time.Second
	if left := most - s.sender.idle(); left > 0 {
		l.idle.Reset(left)
		return
	}
	go s.stop(fmt.Sprintf("%s for %s", protocol.ReasonIdle, most))
}

func (l *limiter) clear() {
	for _, each := range l.timers {
		each.Stop()
	}
	if l.idle != nil {
		l.idle.Stop()
	}
	l.timers, l.idle = nil, nil
}

// end takes the timers away.
func (l *limiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	l.ended = true
}
