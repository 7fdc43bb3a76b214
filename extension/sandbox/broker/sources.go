package broker

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/admitkit/admitkit/extension/sandbox/broker/protocol"
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
	clock          clock.PassiveClock
	maxConnections int
	limiters       *lru.Cache

	mu   sync.Mutex
	open map[netip.Addr]int
}

type sourceLimiters struct{ connections, requests, invalid *rate.Limiter }

func newSources(clock clock.PassiveClock, maxConnections int) *sources {
	return &sources{clock: clock, maxConnections: maxConnections, limiters: lru.New(limitedSources), open: map[netip.Addr]int{}}
}

func (s *sources) of(source netip.Addr) *sourceLimiters {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.limiters.Get(source); ok {
		return found.(*sourceLimiters)
	}
	made := &sourceLimiters{
		connections: rate.NewLimiter(rate.Limit(s.maxConnections), 2*s.maxConnections),
		requests:    rate.NewLimiter(requestsPerSecond, requestBurst), invalid: rate.NewLimiter(invalidPerSecond, invalidBurst),
	}
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

// connect reports whether an address may have another connection. disconnect ends it.
func (s *sources) connect(source netip.Addr) bool {
	if !s.of(source).connections.AllowN(s.clock.Now(), 1) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[source] >= s.maxConnections {
		return false
	}
	s.open[source]++
	return true
}

func (s *sources) disconnect(source netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[source]--; s.open[source] == 0 {
		delete(s.open, source)
	}
}

// sourceOf is the address of a caller, such as 192.0.2.1:40000.
func sourceOf(remote string) netip.Addr {
	at, _ := netip.ParseAddrPort(remote) // what net gives can be parsed
	return at.Addr().Unmap()
}

// listener closes connections of an address that has too many, before their TLS.
type listener struct {
	net.Listener
	sources *sources
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(conn.RemoteAddr().String())
		if l.sources.connect(source) {
			return &connection{Conn: conn, ended: sync.OnceFunc(func() { l.sources.disconnect(source) })}, nil
		}
		requestsTotal.WithLabelValues("connection", string(protocol.CodeRateLimited)).Inc()
		_ = conn.Close()
	}
}

// connection is one that is counted until it is closed.
type connection struct {
	net.Conn
	ended func()
}

func (c *connection) Close() error {
	defer c.ended()
	return c.Conn.Close()
}
