package proxy

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// serveProxy answers clients that were told of the proxy.
func (p *Proxy) serveProxy(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		p.servePlain(w, r)
		return
	}
	host, text, err := net.SplitHostPort(r.Host)
	port, parsed := strconv.ParseUint(text, 10, 16)
	if err != nil || parsed != nil || port == 0 {
		http.Error(w, "admitkit: CONNECT needs a name and a port", http.StatusBadRequest)
		return
	}
	host = normal(host)
	if err := p.check(host, int32(port)); err != nil {
		http.Error(w, "admitkit: "+err.Error(), http.StatusForbidden)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "admitkit: CONNECT needs HTTP/1.1", http.StatusHTTPVersionNotSupported)
		return
	}
	if _, err := conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	p.open(context.WithoutCancel(r.Context()), &peeked{conn, buffered.Reader}, host, int32(port))
}

// servePlain answers a request in plain HTTP, which goes to port 80 of its Host or, in the
// form for proxies, to that of its URL.
func (p *Proxy) servePlain(w http.ResponseWriter, r *http.Request) {
	name, port := hostOf(r.Host), int32(80)
	if r.URL.IsAbs() {
		if r.URL.Scheme != "http" {
			http.Error(w, "admitkit: use CONNECT for anything but http", http.StatusBadRequest)
			return
		}
		name = normal(r.URL.Hostname())
		if text := r.URL.Port(); text != "" {
			parsed, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				http.Error(w, "admitkit: the port is no number", http.StatusBadRequest)
				return
			}
			port = int32(parsed)
		}
	}
	if err := p.check(name, port); err != nil {
		http.Error(w, "admitkit: "+err.Error(), http.StatusForbidden)
		return
	}
	p.forward(w, r, "http", name, port)
}

// acceptAll serves connections that the kernel redirects here.
func (p *Proxy) acceptAll(ctx context.Context, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			if temporary := net.Error(nil); errors.As(err, &temporary) && temporary.Timeout() {
				continue
			}
			return err
		}
		go p.acceptOne(ctx, conn)
	}
}

// tlsHandshake is the first byte of TLS.
const tlsHandshake = 0x16

// acceptOne tells TLS from HTTP by its first byte: which ports are redirected here is
// decided elsewhere, and those of other protocols are not.
func (p *Proxy) acceptOne(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	reader := bufio.NewReader(conn)
	_ = conn.SetReadDeadline(time.Now().Add(headerTimeout))
	first, err := reader.Peek(1)
	if err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	if first[0] == tlsHandshake {
		p.open(ctx, &peeked{conn, reader}, "", 443)
		return
	}
	p.serve(&peeked{conn, reader}, p.servePlain)
}

// peeked is a connection of which something was read already.
type peeked struct {
	net.Conn
	reader *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.reader.Read(b) }
