package apiserver

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Clock follows the clock of the API server, which checks the certificates and
// gives every object its creation time. If this machine's clock is wrong or jumps, the
// manager must neither make certificates that the API server rejects nor replace good
// ones, and what an extension gives for a while must end when it says.
type Clock struct {
	clock.RealClock // for timers
	machine         clock.PassiveClock
	ahead           atomic.Int64 // how far the API server is ahead, in nanoseconds
}

// NewClock returns a Clock that is the machine's until the API server has answered.
func NewClock(machine clock.PassiveClock) *Clock { return &Clock{machine: machine} }

// Now returns the time of the API server.
func (c *Clock) Now() time.Time {
	return c.machine.Now().Add(time.Duration(c.ahead.Load()))
}

// Since returns the time since t.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// observe learns from an answer that the API server dated between two moments of this
// machine. A date has whole seconds, so that it only bounds the difference. What was
// learned from earlier answers changes no more than the bounds demand: it comes ever
// closer to the truth, and a slow answer does no harm.
func (c *Clock) observe(date, sent, received time.Time) {
	least, most := int64(date.Sub(received)), int64(date.Add(time.Second).Sub(sent))
	for {
		ahead := c.ahead.Load()
		if c.ahead.CompareAndSwap(ahead, min(max(ahead, least), most)) {
			return
		}
	}
}

// Wrap reads the time from each response.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper {
	return &clockReader{next: next, clock: c}
}

type clockReader struct {
	next  http.RoundTripper
	clock *Clock
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (r *clockReader) WrappedRoundTripper() http.RoundTripper { return r.next }

func (r *clockReader) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := r.clock.machine.Now()
	response, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		r.clock.observe(date, sent.Round(0), r.clock.machine.Now().Round(0)) // a date has no monotonic time
	}
	return response, nil
}
