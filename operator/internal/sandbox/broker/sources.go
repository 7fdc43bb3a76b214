package broker

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	shared "github.com/admitkit/admitkit/operator/internal/sources"
)

// What one address can take of the broker before anybody knows who asks there.
const (
	// requestsPerSecond is more than the controller needs, which asks for all runs.
	requestsPerSecond, requestBurst = 200, 400
	// Each token that is not valid costs a question to the API server.
	invalidPerSecond, invalidBurst = 1, 20
	// limitedSources bounds the addresses that are remembered.
	limitedSources = 4096
)

// sources limit what comes from one address: work can reach the port of the broker where nothing redirects it, and the
// limits of a run begin only when the API server has said whose a token is. A flood of one address leaves the broker
// to the others.
type sources struct {
	*shared.Sources
	clock clock.PassiveClock

	mu       sync.Mutex
	limiters *lru.Cache
}

type sourceLimiters struct{ requests, invalid *rate.Limiter }

func newSources(clock clock.PassiveClock, connections int) *sources {
	return &sources{Sources: shared.New(clock, shared.Limits{Each: connections, PerSecond: connections}), clock: clock, limiters: lru.New(limitedSources)}
}

func (s *sources) of(source netip.Addr) *sourceLimiters {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.limiters.Get(source); ok {
		return found.(*sourceLimiters)
	}
	made := &sourceLimiters{requests: rate.NewLimiter(requestsPerSecond, requestBurst), invalid: rate.NewLimiter(invalidPerSecond, invalidBurst)}
	s.limiters.Add(source, made)
	return made
}

// admit returns why a request is not looked at, nil if it is.
func (s *sources) admit(source netip.Addr) error {
	now, of := s.clock.Now(), s.of(source)
	if of.invalid.TokensAt(now) < 1 {
		return later(http.StatusTooManyRequests, protocol.CodeRateLimited, 1, "too many tokens that are not valid come from address %s", source)
	}
	if !of.requests.AllowN(now, 1) {
		return later(http.StatusTooManyRequests, protocol.CodeRateLimited, 1, "address %s asks too often", source)
	}
	return nil
}

// invalid counts a token that is not valid.
func (s *sources) invalid(source netip.Addr) { s.of(source).invalid.AllowN(s.clock.Now(), 1) }

// listener closes connections of an address that has too many, before their TLS.
func (s *sources) listener(plain net.Listener) net.Listener {
	return s.Listener(plain, func(netip.Addr) { requestsTotal.WithLabelValues("connection", string(protocol.CodeRateLimited)).Inc() })
}
