// Package sources bounds what one address takes of a port before anybody knows who asks
// there: a flood of one address leaves the port to the others.
package sources

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/utils/clock"
)

// Limits of the connections to a port. They count until they are closed, or until it is known
// whose they are ([Conn.Known]).
type Limits struct {
	// Each is how many connections one address may have at a time.
	Each int
	// PerSecond is how many new ones it may have a second, and twice as many at once.
	PerSecond int
	// Total is how many connections all addresses may have. With more, the address that has
	// the most loses its newest one. 0 is any number.
	Total int
	// Bytes is how many bytes a connection may send, unless it is allowed more ([Conn.Allow]).
	// 0 is any number.
	Bytes int64
}

// Sources count the connections of each address. Make them with [New].
type Sources struct {
	clock  clock.PassiveClock
	limits Limits
	rates  *Rates[netip.Addr]

	mu    sync.Mutex
	open  map[netip.Addr][]*Conn // the newest last
	total int
}

// New returns what counts by these limits.
func New(clock clock.PassiveClock, limits Limits) *Sources {
	return &Sources{clock: clock, limits: limits, rates: NewRates[netip.Addr](limits.PerSecond, 2*limits.PerSecond), open: map[netip.Addr][]*Conn{}}
}

// Of is the address of a caller, such as 192.0.2.1:40000. The same one has one form.
func Of(remote string) netip.Addr {
	at, _ := netip.ParseAddrPort(remote) // what net gives can be parsed
	return at.Addr().Unmap()
}

// Listener accepts what the limits let through, each a [*Conn], and closes the others at
// once. refused is called for each of these.
func (s *Sources) Listener(from net.Listener, refused func(netip.Addr)) net.Listener {
	return &listener{from, s, refused}
}

type listener struct {
	net.Listener
	sources *Sources
	refused func(netip.Addr)
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		counted := l.sources.count(conn)
		closed := l.sources.enter(counted)
		if closed != nil {
			l.refused(closed.source)
			_ = closed.Conn.Close()
		}
		if closed != counted {
			return counted, nil
		}
	}
}

func (s *Sources) count(conn net.Conn) *Conn {
	counted := &Conn{Conn: conn, sources: s, source: Of(conn.RemoteAddr().String())}
	counted.left.Store(math.MaxInt64)
	if s.limits.Bytes > 0 {
		counted.left.Store(s.limits.Bytes)
	}
	return counted
}

// enter counts a connection. It returns the one that has to be closed for it, which may be
// that one itself, nil if there is room for all.
func (s *Sources) enter(conn *Conn) (closed *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := len(s.open[conn.source])
	if mine >= s.limits.Each || !s.rates.Of(conn.source).AllowN(s.clock.Now(), 1) {
		return conn
	}
	if s.limits.Total > 0 && s.total >= s.limits.Total {
		if closed = s.newestOfMostLocked(mine + 1); closed == nil {
			return conn
		}
		s.leaveLocked(closed)
	}
	s.open[conn.source] = append(s.open[conn.source], conn)
	s.total++
	return closed
}

// newestOfMostLocked returns the newest connection of the address that has the most, and more
// than that, nil if there is none. The older ones may soon be through.
func (s *Sources) newestOfMostLocked(than int) (newest *Conn) {
	for _, conns := range s.open {
		if len(conns) > than {
			newest, than = conns[len(conns)-1], len(conns)
		}
	}
	return newest
}

func (s *Sources) leave(conn *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(conn)
}

func (s *Sources) leaveLocked(conn *Conn) {
	conns := s.open[conn.source]
	at := slices.Index(conns, conn)
	if at < 0 {
		return
	}
	s.total--
	if len(conns) == 1 {
		delete(s.open, conn.source)
		return
	}
	s.open[conn.source] = slices.Delete(conns, at, at+1)
}

// ErrTooMuch is the error of a connection that sends more than it may.
var ErrTooMuch = errors.New("the connection has sent more than it may before it is known whose it is")

// Conn is a connection that counts.
type Conn struct {
	net.Conn
	sources *Sources
	source  netip.Addr
	left    atomic.Int64
}

// Allow lets the connection send so many bytes more.
func (c *Conn) Allow(bytes int64) { c.left.Add(bytes) }

// Known says that it is known whose the connection is: it counts no more, and may send what
// it wants.
func (c *Conn) Known() {
	c.left.Store(math.MaxInt64)
	c.sources.leave(c)
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		return 0, ErrTooMuch
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.left.Add(-int64(n))
	return n, err
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.sources.leave(c)
	return c.Conn.Close()
}
