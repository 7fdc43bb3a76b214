package limits

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Connections is the listener of a server. It bounds the number of connections: when
// there are too many, it closes the one that has been of least use for longest.
//
// One from which the server waits for something goes before one that waits for the
// server, which may be slow because of all the others.
//
// A new connection is a stranger, until it has completed an admission. Addresses would
// be no measure: many API servers can share one behind a NAT or Konnectivity. The
// strangers go first, those that came first at the beginning; one that has completed
// its handshake counts as new again. Of the others, the one whose last admission is the
// longest ago becomes a stranger when they are more than three quarters of all. So
// whoever fills the server with connections that have completed an admission does not
// keep a new API server out, and a connection that is in use outlasts all others. A
// connection with a request that is being answered is never closed.
//
// A connection that was closed occupies its memory until the goroutine that serves it
// has noticed. When an eighth of all are in that state, the next one waits for them in
// the kernel, so that nobody fills the memory by opening connections faster than they
// end.
type Connections struct {
	net.Listener
	max int
	log *zap.Logger

	mu        sync.Mutex
	strangers line[Connection] // the next to go comes first
	known     line[Connection]
	ending    int       // how many were closed and are still served
	ended     sync.Cond // there are fewer of those, or the listener is closed
	closed    bool
}

// NewConnections returns a listener of at most max connections.
func NewConnections(listener net.Listener, most int, log *zap.Logger) *Connections {
	c := &Connections{Listener: listener, max: most, log: log}
	c.ended.L = &c.mu
	return c
}

// Connection is one connection of a server. A nil one is one of somebody else's server.
type Connection struct {
	net.Conn
	all  *Connections
	spot spot[Connection]
	// known is true while it stands in that line.
	known atomic.Bool
	// shaken is true when the handshake is complete.
	shaken bool
	// answering is the number of requests that are being answered.
	answering int
	// awaited is true while the server waits for what the client sends.
	awaited atomic.Bool
	// Verified is what Clients found out about its certificate, nil for nothing.
	Verified atomic.Pointer[Verified]
	// closed is true when it does not count any more, ended when it is not served any
	// more.
	closed, ended bool
}

// Verified says by which roots a certificate was verified, and until when that holds.
type Verified struct {
	By    *x509.CertPool
	Until time.Time
}

// The metrics of connections, on controller-runtime's registry.
var (
	connectionsOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "admitkit_webhook_connections",
		Help: "Open connections, of all webhooks.",
	})
	connectionsClosed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "admitkit_webhook_connections_closed_total",
		Help: "Connections that were closed because there were too many.",
	})
)

func init() { metrics.Registry.MustRegister(connectionsOpen, connectionsClosed) }

// receiveBuffer bounds what the kernel keeps of what nobody has read yet, which counts
// as the process's memory. It would be up to 32 MiB for each connection otherwise.
const receiveBuffer = 128 << 10

// Accept returns the next connection. It closes another one if there are too many.
func (c *Connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if socket, ok := conn.(*net.TCPConn); ok {
			_ = socket.SetReadBuffer(receiveBuffer) // fails if it is closed already
		}
		if added := c.add(conn); added != nil {
			return added, nil
		}
	}
}

// add returns nil if there is no room.
func (c *Connections) add(conn net.Conn) net.Conn {
	added := &Connection{Conn: conn, all: c}
	first, known := c.enter(added)
	switch {
	case first == added:
		connectionsClosed.Inc()
		c.log.Warn("a connection was closed at once: all others have requests that are being answered", zap.Int("maxConnections", c.max))
		_ = conn.Close() // nothing to be done about it
		return nil
	case first != nil:
		connectionsClosed.Inc()
		c.log.Warn("a connection was closed to make room for another", zap.Int("maxConnections", c.max),
			zap.Stringer("address", first.RemoteAddr()), zap.Bool("completedAnAdmission", known))
		_ = first.Conn.Close() // nothing to be done about it
	}
	return added
}

// enter takes a place for a connection. It returns the one that is to be closed for
// it, and whether that one was known; nil for none, and the new one if there is no room.
func (c *Connections) enter(added *Connection) (first *Connection, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.ending > c.max/8 && !c.closed {
		c.ended.Wait()
	}
	if c.strangers.length+c.known.length >= c.max {
		if first, known = c.first(); first == nil {
			return added, false
		}
		first.leave()
		c.ending++
	}
	added.spot.join(&c.strangers, added)
	connectionsOpen.Inc()
	return first, known
}

// first returns the connection that goes first, and whether it is known.
func (c *Connections) first() (first *Connection, known bool) {
	for at := c.strangers.first; at != nil; at = at.after {
		if at.who.answering == 0 && at.who.awaited.Load() {
			return at.who, false
		}
	}
	for _, line := range []*line[Connection]{&c.strangers, &c.known} {
		for at := line.first; at != nil; at = at.after {
			if at.who.answering == 0 {
				return at.who, line == &c.known
			}
		}
	}
	return nil, false
}

// Read reads what the client sends.
func (c *Connection) Read(into []byte) (int, error) {
	c.awaited.Store(true)
	defer c.awaited.Store(false)
	return c.Conn.Read(into)
}

// Close stops listening.
func (c *Connections) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.ended.Broadcast()
	return c.Listener.Close()
}

// Close closes the connection. The server calls it when it has stopped serving it.
func (c *Connection) Close() error {
	c.all.mu.Lock()
	switch {
	case !c.closed:
		c.leave()
	case !c.ended:
		c.all.ending--
		c.all.ended.Signal()
	}
	c.ended = true
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// leave ends the place of a connection.
func (c *Connection) leave() {
	c.closed = true
	c.spot.leave()
	connectionsOpen.Dec()
}

// CloseStranger closes a connection that has completed no admission and answers
// none. It reports whether it did.
func (c *Connection) CloseStranger() bool {
	if c == nil || !c.leaveAsStranger() {
		return false
	}
	_ = c.Conn.Close() // nothing to be done about it
	return true
}

func (c *Connection) leaveAsStranger() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.known.Load() || c.answering > 0 {
		return false
	}
	if !c.closed {
		c.leave()
		c.all.ending++
	}
	return true
}

// IsStranger reports whether it has not completed an admission recently.
func (c *Connection) IsStranger() bool {
	return c != nil && !c.known.Load()
}

// Answer marks the connection while a request that has arrived completely is being
// answered.
func (c *Connection) Answer() {
	if c == nil {
		return
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.answering++
}

// Answered ends answer. An admission makes the connection known.
func (c *Connection) Answered(admission bool) {
	if c == nil {
		return
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.answering--
	if !admission || c.closed {
		return
	}
	c.spot.join(&c.all.known, c)
	c.known.Store(true)
	if c.all.known.length > max(1, c.all.max*3/4) {
		oldest := c.all.known.first.who
		oldest.spot.join(&c.all.strangers, oldest)
		oldest.known.Store(false)
	}
}

// State is the ConnState of a server: it notes that a handshake is complete.
func (c *Connections) State(conn net.Conn, state http.ConnState) {
	if state != http.StateActive {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := connectionOf(conn); of != nil && !of.shaken {
		of.shaken = true
		if of.spot.in == &c.strangers {
			of.spot.join(&c.strangers, of)
		}
	}
}

func connectionOf(conn net.Conn) *Connection {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	of, _ := conn.(*Connection)
	return of
}

type connectionKey struct{}

// WithConnection is the ConnContext of a server.
func WithConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, connectionOf(conn))
}

// ConnectionFrom returns the connection of a request, nil if the server is not ours.
func ConnectionFrom(ctx context.Context) *Connection {
	c, _ := ctx.Value(connectionKey{}).(*Connection)
	return c
}
