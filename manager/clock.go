package manager

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// serverClock follows the clock of the API server, which checks the certificates. If
// this machine's clock is wrong or jumps, the manager must neither make certificates
// that the API server rejects nor replace good ones.
type serverClock struct {
	clock.RealClock
	ahead atomic.Int64 // how far the API server is ahead, in nanoseconds
}

// tolerance is the difference between the clocks that does not matter. The header
// that is compared has whole seconds.
const tolerance = 5 * time.Second

func (c *serverClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *serverClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// wrap reads the time from each response.
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
