package testkit

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Attack is what somebody does who reaches the port.
type Attack struct {
	sync.WaitGroup
	// Address is that of the port, Path that of a mutating webhook for Pods.
	Address, Path string

	next atomic.Int64

	// What was done.
	Connections           atomic.Int64
	bodies, pods, refused atomic.Int64
}

func (a *Attack) String() string {
	return fmt.Sprintf("%d stalled connections, %d stalled bodies of 8 MiB, %d hostile Pods, of which %d were refused",
		a.Connections.Load(), a.bodies.Load(), a.pods.Load(), a.refused.Load())
}

// Begin attacks until ctx ends, with so many of each kind at a time.
func (a *Attack) Begin(ctx context.Context) {
	for i := range Long(5000, 1000) {
		a.repeat(ctx, 20*time.Second, func() { a.Stall(ctx, i%len(StallPoints)) })
	}
	for range Long(64, 16) {
		a.repeat(ctx, 5*time.Second, func() { a.stallBody(ctx) })
	}
	bodies := hostile()
	for i := range Long(200, 40) {
		a.repeat(ctx, 5*time.Second, func() { a.send(ctx, bodies[i%len(bodies)]) })
	}
}

// repeat does it again and again, since attackers do not give up. The pause keeps the
// processors for the server and the API server.
func (a *Attack) repeat(ctx context.Context, pause time.Duration, do func()) {
	a.Go(func() {
		for ctx.Err() == nil {
			do()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

// dial connects from one of three addresses.
func (a *Attack) dial(ctx context.Context) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+a.next.Add(1)%3))}
	conn, err := (&net.Dialer{LocalAddr: from, Timeout: 5 * time.Second}).DialContext(ctx, "tcp", a.Address)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	return conn, err
}

func (a *Attack) dialTLS(ctx context.Context) (*tls.Conn, error) {
	conn, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// wait returns when the server closes the connection.
func wait(conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}

// StallPoints are where connections stall.
var StallPoints = []string{"tcp", "handshake", "tls", "header", "body"}

// Stall opens a connection and stops at a point.
func (a *Attack) Stall(ctx context.Context, point int) {
	a.Connections.Add(1)
	var conn net.Conn
	var err error
	if point < 2 {
		conn, err = a.dial(ctx)
	} else {
		conn, err = a.dialTLS(ctx)
	}
	if err != nil {
		return
	}
	header := "POST " + a.Path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n"
	_, _ = io.WriteString(conn, []string{
		"",                             // after TCP's handshake
		"\x16\x03\x01\x02\x00\x01\x00", // in TLS's
		"",                             // after it
		header,                         // in the header
		header + "\r\n{\"request\"",    // in the body
	}[point])
	wait(conn)
}

// stallBody sends a body of 8 MiB except its last byte.
func (a *Attack) stallBody(ctx context.Context) {
	conn, err := a.dialTLS(ctx)
	if err != nil {
		return
	}
	const size = 8 << 20
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", a.Path, size)
	_, _ = conn.Write(bytes.Repeat([]byte(" "), size-1))
	a.bodies.Add(1)
	wait(conn)
}

// send sends a small review, so that the connection has completed an admission, and
// then a hostile one.
func (a *Attack) send(ctx context.Context, body string) {
	conn, err := a.dialTLS(ctx)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	transport := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	defer transport.CloseIdleConnections()
	for _, body := range []string{HostilePod("{}", 1), body} {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+a.Address+a.Path+"?timeout=10s", strings.NewReader(body))
		if err != nil {
			return
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(request)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if len(body) < 1<<10 {
			continue
		}
		a.pods.Add(1)
		if response.StatusCode != http.StatusOK {
			a.refused.Add(1)
		}
	}
}

// hostile returns reviews of Pods of many empty containers: one as any user can cause
// an API server to send it (172 KB for the user, 7.6 MiB with the defaults), one of a
// MiB that says less, and one that is small enough to be decoded.
func hostile() []string {
	return []string{
		HostilePod(`{"name":"","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always"}`, 58_823),
		HostilePod(`{}`, 349_000),
		HostilePod(`{}`, 10_000),
	}
}

// HostilePod returns the review of a Pod with n containers.
func HostilePod(container string, n int) string {
	return `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002",` +
		`"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"name":"hostile","namespace":"default",` +
		`"operation":"CREATE","userInfo":{"username":"mallory"},"object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"hostile"},"spec":{"containers":[` +
		strings.TrimSuffix(strings.Repeat(container+",", n), ",") + `]}},"oldObject":null,"dryRun":false,"options":null}}`
}
