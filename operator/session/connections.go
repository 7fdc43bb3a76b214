package session

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/net/netutil"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/sources"
)

const (
	// maxStrangers is how many connections have not shown a ticket yet, and strangersOfSource
	// how many of them come from one address: after a restart all recorders of a node connect
	// at once, which may have 110 Pods behind its own address.
	maxStrangers, strangersOfSource = 512, 128
	// newPerSecond is how many connections one address may begin a second.
	newPerSecond = 256
	// maxConnections are those of sessions, of strangers, and of the API server.
	maxConnections = collector.DefaultMaxSessions + maxStrangers + 512
	// maxHandshake is how many bytes of a handshake are read. Go takes a client certificate of
	// 256 KiB, and that of a front proxy has 1 to 6.
	maxHandshake = 16 << 10
	// handshakeTime is how long a handshake may take, and then a header.
	handshakeTime = 5 * time.Second
	// spareHeader is what a request has besides its header: of one whose header is too large
	// the server has to see that.
	spareHeader = 8 << 10
)

// server returns the server of the port. The deadline of the header is that of the handshake,
// too.
func (r *receiver) server() *http.Server {
	web := &http.Server{
		Handler: r, ReadHeaderTimeout: handshakeTime, MaxHeaderBytes: maxHeader,
		ReadTimeout: 2 * handshakeTime,          // else a refused request whose body does not come holds its connection for ever
		ErrorLog:    log.New(io.Discard, "", 0), // what strangers' handshakes cause
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, countedOf(conn))
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateHijacked { // by the collector, which has seen a ticket and the token of its Pod
				countedOf(conn).Known()
			}
		},
	}
	if r.api != nil {
		web.MaxHeaderBytes = maxAPIHeader
	}
	web.SetKeepAlivesEnabled(false)
	return web
}

type connectionKey struct{}

// listen bounds what connects, and makes it secure.
func (r *receiver) listen(plain net.Listener) net.Listener {
	strangers := sources.New(r.clock, sources.Limits{Each: strangersOfSource, PerSecond: newPerSecond, Total: maxStrangers, Bytes: maxHandshake})
	bounded := strangers.Listener(netutil.LimitListener(plain, maxConnections), func(netip.Addr) { refusedTotal.WithLabelValues("connection").Inc() })
	secure := &tls.Config{
		GetCertificate: r.certificate, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		SessionTicketsDisabled: true, // a connection has a configuration of its own, with keys of its own
	}
	if r.api != nil { // the front proxy shows its certificate; recorders have none
		secure.ClientAuth = tls.RequestClientCert
	}
	secure.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := secure.Clone()
		own.GetConfigForClient = nil
		own.VerifyConnection = func(state tls.ConnectionState) error {
			conn := hello.Conn.(*counted)
			conn.front = r.isFront(state.PeerCertificates)
			conn.Allow(conn.header())
			return nil
		}
		return own, nil
	}
	return tls.NewListener(&kept{bounded, r}, secure)
}

// isFront reports whether a connection has the certificate of the API server's front proxy.
func (r *receiver) isFront(certificates []*x509.Certificate) bool {
	return r.api != nil && len(certificates) > 0 && r.api.Trusts(context.Background(), certificates)
}

// knowFront takes the connections of the API server out of the count: who asks by it has
// bounds of their own.
func (r *receiver) knowFront(request *http.Request) {
	if conn, ok := request.Context().Value(connectionKey{}).(*counted); ok && conn.front {
		conn.Known()
	}
}

// countedOf returns the connection below TLS.
func countedOf(conn net.Conn) *counted { return conn.(*tls.Conn).NetConn().(*counted) }

// kept keeps the connections, so that all end with the receiver.
type kept struct {
	net.Listener
	receiver *receiver
}

// Accept implements [net.Listener].
func (k *kept) Accept() (net.Conn, error) {
	conn, err := k.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counted := &counted{Conn: conn.(*sources.Conn), receiver: k.receiver}
	k.receiver.keep(counted)
	return counted, nil
}

// counted is a connection whose bytes are counted.
type counted struct {
	*sources.Conn
	receiver *receiver
	front    bool // it has shown the certificate of the API server's front proxy
}

// header returns how many bytes follow a handshake: the API server sends the groups of a
// user, and options. Another one's certificate makes no difference.
func (c *counted) header() int64 {
	if c.front {
		return maxAPIHeader + maxAPIBody + spareHeader
	}
	return maxHeader + spareHeader
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	receivedBytes.Add(float64(n))
	return n, err
}

func (c *counted) Close() error {
	c.receiver.forget(c)
	return c.Conn.Close()
}

func (r *receiver) keep(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[conn] = true
	if r.ended {
		go func() { _ = conn.Close() }()
	}
}

func (r *receiver) forget(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

func (r *receiver) closeAll() {
	r.mu.Lock()
	r.ended = true
	conns := make([]net.Conn, 0, len(r.conns))
	for conn := range r.conns {
		conns = append(conns, conn)
	}
	r.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
}
