package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
)

var discard = log.New(io.Discard, "", 0) // what runs do to their connections is theirs

// authority makes certificates for the names of servers, by the authority of the run.
type authority struct {
	chain [][]byte
	ca    *x509.Certificate
	sign  *ecdsa.PrivateKey
	// key is that of all certificates: they last no longer than the process.
	key *ecdsa.PrivateKey

	mu    sync.Mutex
	names map[string]*tls.Certificate
}

// maxNames bounds the certificates that are remembered.
const maxNames = 512

func newAuthority(pair *runca.Pair) (*authority, error) {
	ca, sign, err := pair.Parse()
	if err != nil {
		return nil, err
	}
	if !ca.IsCA || !ca.MaxPathLenZero || !time.Now().Before(ca.NotAfter) {
		return nil, errors.New("it is not the authority of a run: one that is valid, and signs no other")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{ca: ca, sign: sign, key: key, names: map[string]*tls.Certificate{}}
	for block, rest := pem.Decode(pair.Certificate); block != nil; block, rest = pem.Decode(rest) {
		a.chain = append(a.chain, block.Bytes)
	}
	return a, nil
}

// certificate returns one for a name.
func (a *authority) certificate(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.names[name]; known != nil {
		return known, nil
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name[:min(len(name), 64)]}, DNSNames: []string{name},
		NotBefore: a.ca.NotBefore, NotAfter: a.ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.ca, &a.key.PublicKey, a.sign)
	if err != nil {
		return nil, err
	}
	if len(a.names) >= maxNames {
		clear(a.names)
	}
	made := &tls.Certificate{Certificate: append([][]byte{der}, a.chain...), PrivateKey: a.key}
	a.names[name] = made
	return made, nil
}

// check returns why a run may not reach a name, nil if it may, and has it on record.
func (p *Proxy) check(host string, port int32) error {
	err := p.policy.allows(host, port)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errDiscovered) && !p.reports.failing.Load():
		if p.reports.add(host, port, true, err.Error()) {
			return nil
		}
		err = fmt.Errorf("a discovery lets through what is recorded only, at most %d new names every %s: try again", maxDiscovered, reportEvery)
	case errors.Is(err, errDiscovered):
		err = errors.New("a discovery lets through what is recorded only, and the broker records nothing")
	}
	p.reports.add(host, port, false, err.Error())
	return err
}

// open serves the TLS of a connection: that of name, or if that is empty of the name that
// it says itself. It returns when the connection ends.
func (p *Proxy) open(ctx context.Context, conn net.Conn, name string, port int32) {
	said := name
	server := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			sni := normal(hello.ServerName)
			if name != "" && sni != name {
				p.reports.add(name, port, false, fmt.Sprintf("the TLS inside is for %.200q", sni))
				return nil, errors.New("the name in TLS is not that of CONNECT")
			}
			if said = sni; name == "" {
				if err := p.check(sni, port); err != nil {
					return nil, err
				}
			}
			return p.authority.certificate(sni)
		},
	})
	shake, cancel := context.WithTimeout(ctx, headerTimeout)
	err := server.HandshakeContext(shake)
	cancel()
	if err != nil {
		if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
			p.reports.add(name, port, false, "what is inside is not TLS")
		}
		_ = conn.Close()
		return
	}
	defer p.connections.add(conn, said, port)()
	p.serve(server, func(w http.ResponseWriter, r *http.Request) { p.forward(w, r, "https", said, port) })
}

// serve answers requests on one connection, until it ends.
func (p *Proxy) serve(conn net.Conn, handler http.HandlerFunc) {
	listener := &once{conn: conn, closed: make(chan struct{})}
	var upgraded atomic.Bool
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler(w, r)
		if upgraded.Load() { // the connection was the handler's
			listener.done()
		}
	}))
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateHijacked:
			upgraded.Store(true)
		case http.StateClosed:
			listener.done()
		}
	}
	_ = server.Serve(listener)
}

// once is a listener of one connection.
type once struct {
	conn   net.Conn
	given  bool
	mu     sync.Mutex
	closed chan struct{}
}

func (o *once) Accept() (net.Conn, error) {
	if !o.given {
		o.given = true
		return o.conn, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}

func (o *once) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.closed:
	default:
		close(o.closed)
	}
}

func (o *once) Close() error   { o.done(); return nil }
func (o *once) Addr() net.Addr { return o.conn.LocalAddr() }

// forward sends a request to the server of the name that was checked, with its credentials.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, scheme, name string, port int32) {
	if host := hostOf(r.Host); host != name {
		p.reports.add(name, port, false, fmt.Sprintf("the Host of a request is %.200q", host))
		http.Error(w, "the Host of the request is not the name of the connection", http.StatusMisdirectedRequest)
		return
	}
	// Again for each request: the policy may have changed.
	if err := p.policy.allows(name, port); err != nil && !errors.Is(err, errDiscovered) {
		p.reports.add(name, port, false, err.Error())
		http.Error(w, "admitkit: "+err.Error(), http.StatusForbidden)
		return
	}
	switch r.Method {
	case http.MethodTrace, "TRACK", http.MethodConnect: // they show headers, or lead on
		p.reports.add(name, port, false, "the method "+r.Method)
		http.Error(w, "admitkit: the method "+r.Method+" does not go on: it would show the credential, or lead elsewhere", http.StatusMethodNotAllowed)
		return
	}
	if to := r.Header.Get("Upgrade"); to != "" && !strings.EqualFold(to, "websocket") {
		p.reports.add(name, port, false, "an upgrade to another protocol")
		http.Error(w, "admitkit: an upgrade to anything but websocket does not go on: nobody could see what is in it", http.StatusForbidden)
		return
	}
	// A policy that withdraws the name ends what goes on, whatever carries it.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer p.connections.add(&goingOn{cancel}, name, port)()
	r = r.WithContext(ctx)
	credentials := http.Header{}
	if scheme == "https" { // never in plain text
		if err := p.inject(r.Context(), name, credentials); err != nil {
			p.log.Warn("a request is refused that would lack a credential")
			http.Error(w, "admitkit: "+err.Error(), http.StatusBadGateway)
			return
		}
	}
	proxy := &httputil.ReverseProxy{
		Transport: p.transport, FlushInterval: -1, ErrorLog: discard,
		Rewrite: func(out *httputil.ProxyRequest) {
			// The query is the one without what Go cannot read.
			out.Out.URL = &url.URL{Scheme: scheme, Host: net.JoinHostPort(name, strconv.Itoa(int(port))), Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: out.Out.URL.RawQuery}
			out.Out.Host = hostPort(scheme, name, port) // a server may read more out of what the run wrote
			p.withoutSignIn(out.Out, name, port)
			maps.Copy(out.Out.Header, credentials)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errRange) {
				p.reports.add(name, port, false, err.Error())
				http.Error(w, "admitkit: "+err.Error(), http.StatusForbidden)
				return
			}
			http.Error(w, "admitkit: the server does not answer", http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
}

// hostPort is the Host header for a name and a port.
func hostPort(scheme, name string, port int32) string {
	if scheme == "http" && port == 80 || scheme == "https" && port == 443 {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(int(port)))
}

// withoutSignIn removes what would sign the run in, and has it on record.
func (p *Proxy) withoutSignIn(out *http.Request, name string, port int32) {
	headers, query := p.policy.passing(name, port)
	for _, removed := range strip(out, headers, query) {
		p.reports.addRemoved(name, port, removed)
	}
}

// goingOn is a request that is being answered.
type goingOn struct{ cancel context.CancelFunc }

// Close ends it.
func (g *goingOn) Close() error { g.cancel(); return nil }

// hostOf returns the name in a Host header.
func hostOf(header string) string {
	if !httpguts.ValidHostHeader(header) {
		return ""
	}
	if host, _, err := net.SplitHostPort(header); err == nil {
		return normal(host)
	}
	return normal(header)
}

// connections are those that are open, and the requests that are being answered, by the name
// that they were let through for.
type connections struct {
	mu   sync.Mutex
	open map[io.Closer]place
}

type place struct {
	host string
	port int32
}

func newConnections() *connections { return &connections{open: map[io.Closer]place{}} }

// add returns what to call when the connection has ended.
func (c *connections) add(conn io.Closer, host string, port int32) (ended func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = place{host, port}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, conn)
		_ = conn.Close()
	}
}

// closeUnless closes the connections to names that are not allowed any more.
func (c *connections) closeUnless(allows func(host string, port int32) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, to := range c.open {
		if err := allows(to.host, to.port); err != nil && !errors.Is(err, errDiscovered) {
			_ = conn.Close()
		}
	}
}
