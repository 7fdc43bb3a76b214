package proxy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
)

// answers is a broker whose answers the test chooses. The real one has tests of its own.
type answers struct {
	mu      sync.Mutex
	egress  protocol.Egress
	down    bool
	issues  int
	reports []protocol.Reported
}

var errDown = errors.New("connection refused")

func (a *answers) Egress(context.Context) (*protocol.Egress, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, errDown
	}
	egress := a.egress
	return &egress, nil
}

func (a *answers) Issue(_ context.Context, r protocol.IssueRequest) (*protocol.Issued, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, errDown
	}
	a.issues++
	return &protocol.Issued{
		Lease: r.Name, ExpiresAt: time.Now().Add(time.Minute), Header: &protocol.Header{Name: "Authorization", Value: "Bearer secret"}, Hosts: []string{"api.example.com"},
	}, nil
}

func (a *answers) Report(_ context.Context, r protocol.Report) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return errDown
	}
	a.reports = append(a.reports, r.Entries...)
	return nil
}

func (a *answers) set(change func(*answers)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// names resolves each name to the address that the test says.
type names map[string]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if n[host] == "" {
		return nil, fmt.Errorf("no such host: %s", host)
	}
	return []netip.Addr{netip.MustParseAddr(n[host])}, nil
}

// outside is a server of the internet, and a run with its proxy.
type outside struct {
	*Proxy
	broker  *answers
	port    int32
	address string // of the proxy
	trust   *x509.CertPool
	bundle  []byte // has the authorities in trust, in PEM
	server  *httptest.Server
}

func newOutside(t *testing.T, mode Mode, change ...func(*Options, int32)) *outside {
	t.Helper()
	now := time.Now()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "websocket" {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(conn, rw)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Proto, r.Host, r.URL.Path, r.Header.Get("Authorization"))
	}))
	server.EnableHTTP2 = true
	authority := testkit.NewClientCA(t)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*authority.Issue(t, "server", x509.ExtKeyUsageServerAuth, "api.example.com", "other.example.com", "inside.example.com")}}
	server.StartTLS()
	t.Cleanup(server.Close)
	o := &outside{server: server, broker: &answers{}, trust: x509.NewCertPool()}
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.ParseInt(at.Port(), 10, 32)
	o.port = int32(port)
	o.broker.egress = protocol.Egress{
		Allow:       []protocol.Name{{Host: "api.example.com", Ports: []int32{o.port, 443}}, {Host: "inside.example.com", Ports: []int32{o.port}}},
		Credentials: []protocol.Injected{{Name: "model", Header: "Authorization", Hosts: []string{"api.example.com"}}},
	}
	root, err := runca.NewRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := runca.NewRun(root, "shop", "run", now)
	if err != nil {
		t.Fatal(err)
	}
	o.bundle = root.Certificate
	o.trust.AppendCertsFromPEM(o.bundle)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate)
	options := Options{
		Mode: mode, Broker: o.broker, CA: *ca, Roots: roots, Deny: []netip.Prefix{netip.MustParsePrefix("198.41.0.0/24")},
		Resolver: names{"api.example.com": "127.0.0.1", "other.example.com": "127.0.0.1", "inside.example.com": "10.0.0.1"},
	}
	for _, c := range change {
		c(&options, o.port)
	}
	if o.Proxy, err = New(options); err != nil {
		t.Fatal(err)
	}
	// The server is on this machine.
	refused := o.dialer.refused
	o.dialer.refused = func(addr netip.Addr) bool { return !addr.IsLoopback() && refused(addr) }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	testkit.Eventually(t, "the proxy knows what the run may reach", func(context.Context) bool {
		_, err := o.policy.current()
		return err == nil
	})
	return o
}

// client is one that was told of the proxy.
func (o *outside) client(http2 bool) *http.Client {
	proxy := &url.URL{Scheme: "http", Host: o.address}
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: o.trust}, ForceAttemptHTTP2: http2,
	}}
}

func get(t *testing.T, c *http.Client, url string, change ...func(*http.Request)) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// url is one of the server's, by a name.
func (o *outside) url(name string) string { return fmt.Sprintf("https://%s:%d/path", name, o.port) }

// onRecord reports whether something of a host was refused for a reason.
func (o *outside) onRecord(t *testing.T, host, reason string) {
	t.Helper()
	o.reports.send(t.Context())
	o.broker.mu.Lock()
	defer o.broker.mu.Unlock()
	if !slices.ContainsFunc(o.broker.reports, func(r protocol.Reported) bool {
		return r.Host == host && strings.Contains(r.Reason, reason) && !r.Allowed
	}) {
		t.Errorf("it is not on record that %q was refused because %q: %+v", host, reason, o.broker.reports)
	}
}

func TestCONNECT(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	t.Run("lets a name through, with its credential in place of the run's", func(t *testing.T) {
		for _, http2 := range []bool{false, true} {
			status, body, err := get(t, o.client(http2), o.url("api.example.com"), func(r *http.Request) { r.Header.Set("Authorization", "Bearer of the run") })
			if err != nil || status != http.StatusOK || !strings.HasSuffix(body, fmt.Sprintf("api.example.com:%d /path Bearer secret", o.port)) {
				t.Errorf("HTTP/2 %v: %d %q %v", http2, status, body, err)
			}
		}
		if o.broker.issues != 1 {
			t.Errorf("%d credentials were issued", o.broker.issues)
		}
	})
	t.Run("refuses what no policy allows", func(t *testing.T) {
		for name, reason := range map[string]string{
			"other.example.com": "no policy allows", "127.0.0.1": "an address", "[::1]": "an address", "localhost": "not a full DNS name",
		} {
			if _, _, err := get(t, o.client(false), o.url(name)); err == nil {
				t.Errorf("%s is let through", name)
			}
			o.onRecord(t, strings.Trim(name, "[]"), reason)
		}
		if status, body, err := get(t, o.client(false), "http://api.example.com/"); err != nil || status != http.StatusForbidden {
			t.Errorf("port 80 is let through: %d %q %v", status, body, err)
		}
	})
	t.Run("refuses a name that leads to a private address", func(t *testing.T) {
		status, body, err := get(t, o.client(false), o.url("inside.example.com"))
		if err != nil || status != http.StatusForbidden {
			t.Errorf("%d %q %v", status, body, err)
		}
		o.onRecord(t, "inside.example.com", "private")
	})
	t.Run("refuses another name in TLS, another Host, and what is not TLS", o.refusesDisguises)
	t.Run("carries upgraded connections, and closes them with the policy", o.closesWithThePolicy)
	t.Run("lets nothing through while the broker does not answer", o.failsClosed)
	t.Run("lets names through in a discovery, on record", o.discovers)
}

// tunnel opens a CONNECT to a name that is allowed.
func (o *outside) tunnel(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", o.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = fmt.Fprintf(conn, "CONNECT api.example.com:%d HTTP/1.1\r\nHost: api.example.com:%d\r\n\r\n", o.port, o.port)
	line := make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n"))
	if _, err := io.ReadFull(conn, line); err != nil || !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		t.Fatalf("%q %v", line, err)
	}
	return conn
}

func (o *outside) refusesDisguises(t *testing.T) {
	for _, sni := range []string{"other.example.com", ""} {
		if err := tls.Client(o.tunnel(t), &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake(); err == nil {
			t.Errorf("the name %q in TLS is let through", sni)
		}
	}
	o.onRecord(t, "api.example.com", `the TLS inside is for "other.example.com"`)
	inside := tls.Client(o.tunnel(t), &tls.Config{ServerName: "api.example.com", RootCAs: o.trust})
	_, _ = io.WriteString(inside, "GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(inside), nil) //nolint:bodyclose // the connection is closed
	if err != nil || resp.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another Host: %v %v", resp, err)
	}
	o.onRecord(t, "api.example.com", `the Host of a request is "other.example.com"`)
	inside = tls.Client(o.tunnel(t), &tls.Config{ServerName: "api.example.com", RootCAs: o.trust})
	_, _ = io.WriteString(inside, "GET / HTTP/1.1\r\nHost: api.example.com:other.example.com\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(inside); err != nil || strings.Contains(string(answer), "other.example.com") {
		t.Errorf("a port that is another name goes on: %v %s", err, answer)
	}
	raw := o.tunnel(t)
	_, _ = io.WriteString(raw, "SSH-2.0-OpenSSH_9.9\r\n")
	if n, _ := io.Copy(io.Discard, raw); n > 7 { // an alert of TLS
		t.Errorf("SSH gets %d bytes", n)
	}
	o.onRecord(t, "api.example.com", "not TLS")
}

func (o *outside) closesWithThePolicy(t *testing.T) {
	inside := tls.Client(o.tunnel(t), &tls.Config{ServerName: "api.example.com", RootCAs: o.trust, NextProtos: []string{"http/1.1"}})
	_, _ = fmt.Fprintf(inside, "GET / HTTP/1.1\r\nHost: api.example.com:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", o.port)
	reader := bufio.NewReader(inside)
	resp, err := http.ReadResponse(reader, nil) //nolint:bodyclose // the connection is closed
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	_, _ = io.WriteString(inside, "hello")
	if echo, err := reader.ReadString('o'); err != nil || echo != "hello" {
		t.Fatalf("%q %v", echo, err)
	}
	before := o.broker.egress
	o.broker.set(func(a *answers) { a.egress.Allow = nil })
	defer o.broker.set(func(a *answers) { a.egress = before })
	if _, err := reader.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it is still open: %v", err)
	}
	if _, _, err := get(t, o.client(false), o.url("api.example.com")); err == nil {
		t.Error("a name is let through that is not allowed any more")
	}
	o.broker.set(func(a *answers) { a.egress = before })
	if err := o.policy.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (o *outside) failsClosed(t *testing.T) {
	o.broker.set(func(a *answers) { a.down = true })
	defer func() {
		o.broker.set(func(a *answers) { a.down = false })
		if err := o.policy.refresh(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	o.leases.keep(nil) // a credential that is needed and cannot be had
	if status, body, err := get(t, o.client(false), o.url("api.example.com")); err != nil || status != http.StatusBadGateway || strings.Contains(body, "HTTP/1.1 api") {
		t.Errorf("without its credential: %d %q %v", status, body, err)
	}
	o.policy.mu.Lock()
	o.policy.at = time.Now().Add(-maxAge - time.Second)
	o.policy.mu.Unlock()
	if _, _, err := get(t, o.client(false), o.url("api.example.com")); err == nil {
		t.Error("a name is let through on what the broker once said")
	}
}

func (o *outside) discovers(t *testing.T) {
	until := time.Now().Add(time.Hour)
	o.broker.set(func(a *answers) { a.egress.DiscoverUntil = &until })
	if err := o.policy.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if status, _, err := get(t, o.client(false), o.url("other.example.com")); err != nil || status != http.StatusOK {
			t.Errorf("%d %v", status, err)
		}
	}
	o.reports.send(t.Context())
	o.broker.mu.Lock()
	defer o.broker.mu.Unlock()
	var counted int64
	for _, r := range o.broker.reports {
		if r.Allowed && r.Host == "other.example.com" {
			counted += r.Count
		}
	}
	if counted != 3 {
		t.Errorf("%d of 3 are on record", counted)
	}
}

func TestRedirectedConnections(t *testing.T) {
	o := newOutside(t, ModeTransparent)
	for sni, allowed := range map[string]bool{"api.example.com": true, "other.example.com": false, "": false} {
		conn, err := net.Dial("tcp", o.address)
		if err != nil {
			t.Fatal(err)
		}
		err = tls.Client(conn, &tls.Config{ServerName: cmp.Or(sni, "127.0.0.1"), InsecureSkipVerify: true}).Handshake()
		if (err == nil) != allowed {
			t.Errorf("TLS for %q: %v", sni, err)
		}
		_ = conn.Close()
	}
	o.onRecord(t, "other.example.com", "no policy allows")
	for host, status := range map[string]int{"other.example.com": http.StatusForbidden, "169.254.169.254": http.StatusForbidden} {
		conn, err := net.Dial("tcp", o.address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "GET /latest/meta-data HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // the connection is closed
		if err != nil || resp.StatusCode != status {
			t.Errorf("HTTP for %s: %v %v", host, resp, err)
		}
		_ = conn.Close()
	}
	o.onRecord(t, "169.254.169.254", "an address")
}

func TestAddressesThatAreNotPublicAreRefused(t *testing.T) {
	refused := refusedRanges([]netip.Prefix{netip.MustParsePrefix("198.41.0.0/24"), netip.MustParsePrefix("2600:aaaa::/32")})
	for text, want := range map[string]bool{
		"8.8.8.8": false, "2606:4700::1": false, "10.1.2.3": true, "172.31.0.1": true, "192.168.1.1": true, "127.0.0.1": true, "169.254.169.254": true, "100.64.0.1": true, "168.63.129.16": true, "168.63.129.17": false, "::ffff:168.63.129.16": true,
		"0.0.0.0": true, "224.0.0.1": true, "255.255.255.255": true, "::1": true, "::": true, "fd00::1": true, "fe80::1": true, "ff02::1": true, "::ffff:10.0.0.1": true,
		"::ffff:8.8.8.8": false, "64:ff9b::a00:1": true, "2002:a00:1::": true, "2001:0:a00:1::": true, "198.41.0.4": true, "2600:aaaa::1": true, "fe80::1%eth0": true,
	} {
		if refused(netip.MustParseAddr(text)) != want {
			t.Errorf("%s: refused is %v", text, !want)
		}
	}
}

func TestReportsAreFoldedAndBounded(t *testing.T) {
	broker := &answers{down: true}
	r := newReports(broker, zap.NewNop())
	for i := range 1000 {
		r.add(fmt.Sprintf("name-%d.example.com", i%200), 443, false, "no policy allows it")
	}
	r.send(t.Context())
	broker.down = false
	r.add("late.example.com", 443, false, "no policy allows it")
	r.send(t.Context())
	var count int64
	for _, entry := range broker.reports {
		count += entry.Count
	}
	if count != 1001 || len(broker.reports) > protocol.MaxReported {
		t.Errorf("%d connections in %d entries", count, len(broker.reports))
	}
}

func TestWhatARunMakesManyOfHidesNothingElse(t *testing.T) {
	r := newReports(&answers{}, zap.NewNop())
	for i := range 200 {
		r.add(fmt.Sprintf("refused-%d.example.com", i), 443, false, "no policy allows it")
		r.addRemoved("api.example.com", 443, fmt.Sprintf("header X-%d-Key", i))
	}
	for i := range 2 * maxDiscovered {
		if named := r.add(fmt.Sprintf("discovered-%d.example.com", i), 443, true, "a discovery"); named != (i < maxDiscovered) {
			t.Errorf("name %d that a discovery lets through is on record: %v", i, named)
		}
	}
	if len(r.entries) > protocol.MaxReported {
		t.Errorf("%d entries", len(r.entries))
	}
}

func TestWhatTheProxyAdds(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	many := testkit.Long(2000, 100)
	median := func(c *http.Client) time.Duration {
		var took []time.Duration
		for range many {
			began := time.Now()
			if status, _, err := get(t, c, o.url("api.example.com")); err != nil || status != http.StatusOK {
				t.Fatal(status, err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return testkit.Percentile(took, 0.5)
	}
	direct := o.server.Client()
	direct.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", o.server.Listener.Addr().String())
	}
	direct.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: o.options.Roots}
	testkit.Figure("proxy.added_p50_ms", testkit.Milliseconds(median(o.client(true))-median(direct)), "ms")
}

// Two policies can do that, and the server would take the one credential for the other.
func TestTwoCredentialsInOneHeaderAreNeitherOfThemSet(t *testing.T) {
	p := &Proxy{leases: &leases{broker: &answers{}, held: map[string]*held{}}}
	for sentence, test := range map[string]struct {
		second protocol.Injected
		want   string
	}{
		"the same header":            {protocol.Injected{Name: "other", Header: "authorization", Hosts: []string{"*.example.com"}}, "credentials model and other of BrokerPolicies are both set in the header authorization at api.example.com"},
		"the same header, elsewhere": {protocol.Injected{Name: "other", Header: "Authorization", Hosts: []string{"a.example.org"}}, ""},
	} {
		p.policy = &policy{at: time.Now(), last: &protocol.Egress{Credentials: []protocol.Injected{{Name: "model", Header: "Authorization", Hosts: []string{"api.example.com"}}, test.second}}}
		header := http.Header{}
		err := p.inject(t.Context(), "api.example.com", header)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", sentence, err, test.want)
		}
	}
}

func TestAProxyHasBounds(t *testing.T) {
	if server := newServer(http.NotFoundHandler()); server.IdleTimeout != time.Minute || server.ReadHeaderTimeout == 0 || server.MaxHeaderBytes != 64<<10 {
		t.Errorf("%+v", server)
	}
	if o := newOutside(t, ModeCooperative); o.options.MaxConnections != 256 {
		t.Errorf("%d connections at a time", o.options.MaxConnections)
	}
}
