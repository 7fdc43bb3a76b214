package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"go.uber.org/zap"
)

// DefaultMaxConnections is the default limit of connections. An API server opens one
// for each hundred requests that it sends at a time, and closes it after 90 s of idleness.
const DefaultMaxConnections = 512

// connections is the listener of a server. It bounds the number of connections: when
// there are too many, it closes the one that has been of least use for longest.
//
// A new connection is a stranger, until it has completed an admission. Addresses would
// be no measure: many API servers can share one behind a NAT or Konnectivity. The
// strangers go first, those that came first at the beginning; one that has completed
// its handshake counts as new again. Of the others, the one whose last admission is the
// longest ago becomes a stranger when they are more than three quarters of all. So
// whoever fills the server with connections that have completed an admission does not
// keep a new API server out, and a connection that is in use outlasts all others. A
// connection with a request that is being answered is never closed.
type connections struct {
	net.Listener
	max int
	log *zap.Logger

	mu        sync.Mutex
	strangers line[connection] // the next to go comes first
	known     line[connection]
}

// connection is one connection of a server. A nil one is one of somebody else's server.
type connection struct {
	net.Conn
	all  *connections
	spot spot[connection]
	// shaken is true when the handshake is complete.
	shaken bool
	// answering is the number of requests that are being answered.
	answering int
	closed    bool
}

// Accept returns the next connection. It closes another one if there are too many.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if added := c.add(conn); added != nil {
			return added, nil
		}
	}
}

// add returns nil if there is no room.
func (c *connections) add(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.strangers.length+c.known.length >= c.max && !c.closeOne() {
		connectionsClosed.Inc()
		_ = conn.Close() // nothing to be done about it
		c.log.Warn("a connection was closed at once: all others have requests that are being answered", zap.Int("maxConnections", c.max))
		return nil
	}
	added := &connection{Conn: conn, all: c}
	added.spot.join(&c.strangers, added)
	connectionsOpen.Inc()
	return added
}

// closeOne closes the connection that goes first, and reports whether there was one.
func (c *connections) closeOne() bool {
	for _, line := range []*line[connection]{&c.strangers, &c.known} {
		for at := line.first; at != nil; at = at.after {
			if at.who.answering > 0 {
				continue
			}
			connectionsClosed.Inc()
			c.log.Warn("a connection was closed to make room for another", zap.Int("maxConnections", c.max),
				zap.Stringer("address", at.who.RemoteAddr()), zap.Bool("completedAnAdmission", line == &c.known))
			_ = at.who.close() // nothing to be done about it
			return true
		}
	}
	return false
}

// Close closes the connection.
func (c *connection) Close() error {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return c.close()
}

func (c *connection) close() error {
	if !c.closed {
		c.closed = true
		c.spot.leave()
		connectionsOpen.Dec()
	}
	return c.Conn.Close()
}

// closeStranger closes a connection that has completed no admission and answers
// none. It reports whether it did.
func (c *connection) closeStranger() bool {
	if c == nil {
		return false
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.spot.in == &c.all.known || c.answering > 0 {
		return false
	}
	_ = c.close() // nothing to be done about it
	return true
}

// isStranger reports whether it has not completed an admission recently.
func (c *connection) isStranger() bool {
	if c == nil {
		return false
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return c.spot.in != &c.all.known
}

// answer marks the connection while a request that has arrived completely is being
// answered.
func (c *connection) answer() {
	if c == nil {
		return
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.answering++
}

// answered ends answer. An admission makes the connection known.
func (c *connection) answered(admission bool) {
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
	if c.all.known.length > max(1, c.all.max*3/4) {
		oldest := c.all.known.first.who
		oldest.spot.join(&c.all.strangers, oldest)
	}
}

// state is the ConnState of a server: it notes that a handshake is complete.
func (c *connections) state(conn net.Conn, state http.ConnState) {
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

func connectionOf(conn net.Conn) *connection {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	of, _ := conn.(*connection)
	return of
}

type connectionKey struct{}

// withConnection is the ConnContext of a server.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, connectionOf(conn))
}

// connectionFrom returns the connection of a request, nil if the server is not ours.
func connectionFrom(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}
