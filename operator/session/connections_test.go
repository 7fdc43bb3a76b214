package session

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

// port is the port of recorders alone, whose tokens name their Pods.
type port struct {
	t       *testing.T
	address string
	key     protocol.Key
}

// open opens the port, which answers the API server if there is a front proxy.
func open(t *testing.T, front *testkit.ClientCA) *port {
	t.Helper()
	p := &port{t: t, key: protocol.Key{Current: bytes.Repeat([]byte("k"), protocol.MinKey)}}
	keys := func() (protocol.Key, error) { return p.key, nil }
	certificate := testkit.NewClientCA(t).Issue(t, "collector", x509.ExtKeyUsageServerAuth, "collector")
	r := &receiver{
		shared: &shared{clock: clock.RealClock{}, log: zap.NewNop()}, conns: map[net.Conn]bool{},
		certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil },
		collector: collector.New(collector.Options{
			Storage: collector.Folder(t.TempDir()), Key: keys,
			Identify: func(_ context.Context, token string) (string, error) { return token, nil },
		}),
	}
	if front != nil {
		r.api = sessionsapi.New(sessionsapi.Options{Now: time.Now, Log: zap.NewNop(), Key: keys, FrontProxy: func(context.Context) (map[string]string, error) {
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate.Raw})
			return map[string]string{"requestheader-client-ca-file": string(ca), "requestheader-username-headers": `["X-Remote-User"]`}, nil
		}})
	}
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, number, _ := net.SplitHostPort(listener.Addr().String())
	p.address = net.JoinHostPort("127.0.0.1", number)
	web, served := r.server(), make(chan struct{})
	go func() {
		defer close(served)
		_ = web.Serve(r.listen(listener))
	}()
	t.Cleanup(func() {
		_ = web.Close()
		r.closeAll()
		<-served
	})
	return p
}

// dial connects from an address of this machine.
func (p *port) dial(from string) net.Conn {
	p.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(p.t.Context(), "tcp", p.address)
	if err != nil {
		p.t.Skipf("this machine cannot connect from %s: %v", from, err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask shakes hands, sends a header, and returns the status of the answer: 0 if the
// connection is closed.
func ask(conn net.Conn, certificate *tls.Certificate, header string) int {
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	secure := tls.Client(conn, config)
	if _, err := fmt.Fprintf(secure, "%s\r\n\r\n", header); err != nil {
		return 0
	}
	response, err := http.ReadResponse(bufio.NewReader(secure), nil)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// ticket returns the header of a recorder.
func (p *port) ticket(pod int) string {
	p.t.Helper()
	uid := fmt.Sprintf("uid-%d", pod)
	text, err := p.key.Sign(&protocol.Ticket{
		ID: protocol.NewID(), Namespace: "shop", Pod: "web", PodUID: uid, Container: "web", User: uid, Command: protocol.Sum([]string{"id"}),
		Expires: time.Now().Add(protocol.Life).Unix(), Terms: protocol.Terms{Collectors: []string{"x"}, Wait: 1},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\nAuthorization: Bearer %s\r\n%s: %s\r\n%s: %s",
		protocol.Path, protocol.Upgrade, uid, protocol.HeaderTicket, text, protocol.HeaderSecret, strings.Repeat("s", 64))
}

// closed is how many connections were closed because their address has too many.
func closed(t *testing.T) int {
	t.Helper()
	var metric dto.Metric
	if err := refusedTotal.WithLabelValues("connection").Write(&metric); err != nil {
		t.Fatal(err)
	}
	return int(metric.Counter.GetValue())
}

const stranger = "GET / HTTP/1.1\r\nHost: c"

func TestOneAddressCannotHoldThePortOfRecorders(t *testing.T) {
	p := open(t, nil)
	before := closed(t)
	for range strangersOfSource + newPerSecond {
		p.dial("127.0.0.2")
	}
	testkit.Eventually(t, "idle connections of one address are closed", func(context.Context) bool {
		return closed(t)-before > newPerSecond/2
	})
	if code := ask(p.dial("127.0.0.3"), nil, stranger); code != http.StatusNotFound {
		t.Errorf("another address is answered %d", code)
	}
}

func TestTheRecordersOfAWholeNodeConnectFromOneAddress(t *testing.T) {
	p := open(t, nil)
	for round := range 2 { // those that are connected do not count
		conns := make([]net.Conn, 110)
		for n := range conns {
			conns[n] = p.dial("127.0.0.2")
		}
		for n, conn := range conns {
			code := ask(conn, nil, p.ticket(round*len(conns)+n))
			for try := 0; code == 0 && try < 5; try++ { // on a busy machine its turn came too late, and a recorder tries again
				code = ask(p.dial("127.0.0.2"), nil, p.ticket(round*len(conns)+n))
			}
			if code != http.StatusSwitchingProtocols {
				t.Fatalf("recorder %d is answered %d", n, code)
			}
		}
	}
}

func TestAStrangerSendsLittleBeforeTheyAreKnown(t *testing.T) {
	front, other := testkit.NewClientCA(t), testkit.NewClientCA(t)
	p := open(t, front)
	long := func(ca *testkit.ClientCA, size int) *tls.Certificate {
		certificate := ca.Issue(t, "front", x509.ExtKeyUsageClientAuth)
		for sum := len(certificate.Certificate[0]); sum < size; sum += len(ca.Certificate.Raw) {
			certificate.Certificate = append(certificate.Certificate, ca.Certificate.Raw)
		}
		return certificate
	}
	groups := func(size int) string {
		return "GET /apis/sessions.admitkit.dev/v1alpha1 HTTP/1.1\r\nHost: c\r\nX-Remote-User: alice" + strings.Repeat("\r\nX-Remote-Group: "+strings.Repeat("g", 1000), size/1000)
	}
	for what, test := range map[string]struct {
		certificate *tls.Certificate
		header      string
		code        int // 0 is refused
	}{
		"the API server, for a user of many groups":     {long(front, 1000), groups(100_000), http.StatusOK},
		"a certificate with a chain":                    {long(front, 8000), groups(1000), http.StatusOK},
		"a certificate as large as Go takes":            {long(front, 200_000), groups(1000), 0},
		"somebody without a certificate":                {nil, groups(1000), http.StatusUnauthorized},
		"somebody without a certificate, at length":     {nil, groups(100_000), 0},
		"somebody with another certificate":             {long(other, 1000), groups(1000), http.StatusUnauthorized},
		"somebody with another certificate, at length":  {long(other, 1000), groups(100_000), 0},
		"a recorder, whose ticket is larger than usual": {nil, p.ticket(1) + "\r\nX: " + strings.Repeat("x", 20_000), http.StatusSwitchingProtocols},
	} {
		code := ask(p.dial("127.0.0.1"), test.certificate, test.header)
		if code == http.StatusBadRequest { // the answer to a header that breaks off, if it comes that far
			code = 0
		}
		if code != test.code {
			t.Errorf("%s: %d instead of %d", what, code, test.code)
		}
	}
}

func TestWhoDoesNotShakeHandsIsDisconnected(t *testing.T) {
	t.Parallel()
	p := open(t, nil)
	conn := p.dial("127.0.0.1")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("%d bytes, %v", n, err)
	}
}
