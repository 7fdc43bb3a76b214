package auditevent

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// maxSkew is how far the clocks of the leader and of the API server may be apart, and how
// far a record's time may be from its creation.
const maxSkew = time.Minute

// serverClock learns the API server's time from its answers.
type serverClock struct {
	clock clock.PassiveClock
	// ahead is how far the API server is ahead; nil before its first answer.
	ahead atomic.Pointer[time.Duration]
}

// agrees reports whether the API server's clock said the same as ours in its last
// answer, and how far ahead it was.
func (s *serverClock) agrees() (ahead time.Duration, ok bool) {
	last := s.ahead.Load()
	if last == nil {
		return 0, false
	}
	return *last, last.Abs() <= maxSkew
}

// listen wraps the transport of a client.
func (s *serverClock) listen(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err != nil {
			return resp, err
		}
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			ahead := at.Sub(s.clock.Now())
			s.ahead.Store(&ahead)
		}
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }
