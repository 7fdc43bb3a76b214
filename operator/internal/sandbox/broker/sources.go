package broker

import (
	"net"
	"net/http"
	"net/netip"

	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	shared "github.com/admitkit/admitkit/operator/internal/sources"
)

// What one address can take of the broker before anybody knows who asks there.
const (
	// requestsPerSecond is more than the controller needs, which asks for all runs.
	requestsPerSecond, requestBurst = 200, 400
	// Each token that is not valid costs a question to the API server.
	invalidPerSecond, invalidBurst = 1, 20
)

// sources limit what comes from one address: work can reach the port of the broker where nothing redirects it, and the
// limits of a run begin only when the API server has said whose a token is. A flood of one address leaves the broker
// to the others.
type sources struct {
	*shared.Sources
	clock clock.PassiveClock
	// requests and tokens limit what is asked, and with tokens that are not valid.
	requests, tokens *shared.Rates[netip.Addr]
}

func newSources(clock clock.PassiveClock, connections int) *sources {
	return &sources{
		Sources: shared.New(clock, shared.Limits{Each: connections, PerSecond: connections}), clock: clock,
		requests: shared.NewRates[netip.Addr](requestsPerSecond, requestBurst), tokens: shared.NewRates[netip.Addr](invalidPerSecond, invalidBurst),
	}
}

// admit returns why a request is not looked at, nil if it is.
func (s *sources) admit(source netip.Addr) error {
	now := s.clock.Now()
	if s.tokens.Of(source).TokensAt(now) < 1 {
		return later(http.StatusTooManyRequests, protocol.CodeRateLimited, 1, "too many tokens that are not valid come from address %s", source)
	}
	if !s.requests.Of(source).AllowN(now, 1) {
		return later(http.StatusTooManyRequests, protocol.CodeRateLimited, 1, "address %s asks too often", source)
	}
	return nil
}

// invalid counts a token that is not valid.
func (s *sources) invalid(source netip.Addr) { s.tokens.Of(source).AllowN(s.clock.Now(), 1) }

// listener closes connections of an address that has too many, before their TLS.
func (s *sources) listener(plain net.Listener) net.Listener {
	return s.Listener(plain, func(netip.Addr) { requestsTotal.WithLabelValues("connection", string(protocol.CodeRateLimited)).Inc() })
}
