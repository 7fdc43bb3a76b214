package manager

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// serverClock goes by the clock of the API server, which is the one that checks
// the certificates: a clock of this machine that is wrong, or jumps, must not
// make certificates that nobody accepts, or replace those that are good.
type serverClock struct {
	clock.RealClock
	ahead atomic.Int64 // of the API server, in nanoseconds
}

// tolerance is what two clocks may differ by without anybody caring. The header
// that is compared has whole seconds.
const tolerance = 5 * time.Second

func (c *serverClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *serverClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// wrap reads the time from each answer.
func (c *serverClock) wrap(next http.RoundTripper) http.RoundTripper {
	return &clockReader{next: next, clock: c}
}

type clockReader struct {
	next  http.RoundTripper
	clock *serverClock
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (r *clockReader) WrappedRoundTripper() http.RoundTripper { return r.next }

func (r *clockReader) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		ahead := date.Sub(time.Now().Round(0))
		if ahead.Abs() <= tolerance {
			ahead = 0
		}
		r.clock.ahead.Store(int64(ahead))
	}
	return response, nil
}
