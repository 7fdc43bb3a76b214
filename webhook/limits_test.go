package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/webhook"
)

func hostilePod(container string, n int) string { return testkit.HostilePod(container, n) }

// stall sends a request whose body does not come, and returns when the server's
// handler waits for it. What becomes of the request comes through the channel.
func stall(t *testing.T, client *http.Client, address string) <-chan answer {
	t.Helper()
	body, never := io.Pipe()
	waits := make(chan struct{})
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(waits) }}))
	t.Cleanup(func() { cancel(); _ = never.Close() })
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = 100_000
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Expect", "100-continue") // a server says to continue when its handler reads
	end := make(chan answer, 1)
	go func() {
		defer close(end)
		response, err := client.Do(r)
		if err != nil {
			end <- answer{body: err.Error()}
			return
		}
		defer response.Body.Close()
		content, _ := io.ReadAll(response.Body)
		end <- answer{response.StatusCode, response.Header, string(content)}
	}()
	select {
	case <-waits:
	case got := <-end:
		t.Fatalf("the request ended before its body was read: %v", got)
	case <-time.After(10 * time.Second):
		t.Fatal("nobody reads the body")
	}
	return end
}

// patient returns the server's client, which waits until it may continue.
func patient(server *httptest.Server) *http.Client {
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.ExpectContinueTimeout = time.Minute
	server.Client().Transport = transport
	return server.Client()
}

func TestABodyThatDoesNotComeTakesNoPlace(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			server, _ := listen(t, http2, webhook.HandlerOptions{MaxInFlight: 1}, named(unique("place"), func(context.Context, *extension.Request) error { return nil }))
			client := patient(server)
			for range 10 {
				stall(t, client, server.URL)
			}
			if got, err := call(t.Context(), t, server, "10s"); err != nil || got.code != http.StatusOK {
				t.Errorf("while ten bodies do not come: %v, %v", got, err)
			}
		})
	}
}

func TestTheBodyThatStallsLongestIsCutOffWhenOthersNeedTheMemory(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			memory := webhook.NewMemory(1 << 20) // 256 KiB for bodies, so for nine of them
			server, path := listen(t, http2, webhook.HandlerOptions{Memory: memory}, named(unique("stall"), func(context.Context, *extension.Request) error { return nil }))
			client := patient(server)
			var stalled []<-chan answer
			for range 20 {
				stalled = append(stalled, stall(t, client, server.URL))
			}
			for i, end := range stalled[:10] {
				select {
				case got := <-end:
					if got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" || !strings.Contains(got.body, "the body stalled") {
						t.Errorf("body %d: %v", i, got)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("body %d is not cut off", i)
				}
			}
			select {
			case got := <-stalled[19]:
				t.Errorf("the body that came last is cut off: %v", got)
			default:
			}
			if got, err := call(t.Context(), t, server, "10s"); err != nil || got.code != http.StatusOK {
				t.Errorf("a body that comes at once: %v, %v", got, err)
			}
			if n := sum(t, "admitkit_webhook_refused_total", map[string]string{"webhook": path, "reason": "stalled"}); n < 10 {
				t.Errorf("%v are counted as stalled", n)
			}
		})
	}
}

func TestAPodThatTakesTooMuchMemoryIsRefusedBeforeItIsDecoded(t *testing.T) {
	server, _ := listen(t, false, webhook.HandlerOptions{Memory: webhook.NewMemory(32 << 20)}, named(unique("costly"), func(context.Context, *extension.Request) error {
		t.Error("it was decoded")
		return nil
	}))
	got, err := deliver(t.Context(), t, server, "", strings.NewReader(hostilePod("{}", 58_823)))
	if err != nil || got.code != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, "MaxMemoryBytes") {
		t.Errorf("%d: %s, %v", got.code, got.body, err)
	}
}

func TestATimeoutLongerThanAPIServersSendIsCapped(t *testing.T) {
	var left time.Duration
	server, _ := listen(t, false, webhook.HandlerOptions{}, named(unique("capped"), func(ctx context.Context, _ *extension.Request) error {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return nil
	}))
	if got, err := call(t.Context(), t, server, "1h"); err != nil || got.code != http.StatusOK {
		t.Fatalf("%v, %v", got, err)
	}
	if left > 30*time.Second {
		t.Errorf("the handler has %s", left)
	}
}

func TestBadRequestsDoNotFillTheLogAndAreAllCounted(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	server, path := listen(t, false, webhook.HandlerOptions{Logger: zap.New(core)}, named(unique("noise"), func(context.Context, *extension.Request) error { return nil }))
	began := time.Now()
	const requests = 300
	for range requests {
		if _, err := deliver(t.Context(), t, server, "", strings.NewReader("{")); err != nil {
			t.Fatal(err)
		}
	}
	seconds := int(time.Since(began)/time.Second) + 2
	if lines := logs.FilterMessage("bad request").Len(); lines < 1 || lines > 10*seconds+requests/100 {
		t.Errorf("%d lines in about %d s", lines, seconds)
	}
	until(t, "all are counted", func() bool {
		return sum(t, "admitkit_webhook_duration_seconds", map[string]string{"webhook": path, "code": "400"}) == requests
	})
}

// bounded is a server with few connections, and a webhook.
type bounded struct {
	address string
	roots   *x509.CertPool
	path    string
}

func newBounded(t *testing.T, most int, handler *extension.Handler) *bounded {
	t.Helper()
	leaf, roots := issued(t)
	port := int(freeport.For(t))
	server := webhook.NewServer(webhook.ServerOptions{
		Host: "127.0.0.1", Port: port, MaxConnections: most,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return leaf, nil },
	})
	webhooks, err := webhook.Group([]*extension.Handler{handler}, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	server.Register(webhooks[0].Path(), webhooks[0].Handler(webhook.HandlerOptions{}))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	if err := server.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { done <- server.Start(ctx) }()
	until(t, "it is ready", func() bool { return server.StartedChecker()(nil) == nil })
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &bounded{fmt.Sprintf("127.0.0.1:%d", port), roots, webhooks[0].Path()}
}

// dial opens a connection that stalls. The channel is closed when it ends.
func (b *bounded) dial(t *testing.T) (ended <-chan struct{}) {
	t.Helper()
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return end
}

// open reports whether none of the connections ends soon.
func open(ended ...<-chan struct{}) bool {
	time.Sleep(100 * time.Millisecond) // what must not happen has no event
	return !slices.ContainsFunc(ended, func(end <-chan struct{}) bool {
		select {
		case <-end:
			return true
		default:
			return false
		}
	})
}

// peer is an API server with one connection.
type peer struct {
	*bounded
	http.Client
	reused bool
}

func (b *bounded) peer(t *testing.T) *peer {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: b.roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &peer{bounded: b, Client: http.Client{Transport: transport}}
}

// admit sends an admission, and notes whether that took a new connection.
func (p *peer) admit(t *testing.T) error {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { p.reused = info.Reused }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.address+p.path, bytes.NewReader([]byte(hostilePod("{}", 1))))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := p.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if content, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		return errors.New(string(content))
	}
	return nil
}

func admits() *extension.Handler {
	return named(unique("bounded"), func(context.Context, *extension.Request) error { return nil })
}

func TestTheConnectionThatStallsLongestMakesRoom(t *testing.T) {
	b := newBounded(t, 3, admits())
	first, second, third := b.dial(t), b.dial(t), b.dial(t)
	if !open(first, second, third) {
		t.Fatal("a connection is closed although there is room")
	}
	fourth := b.dial(t)
	<-first
	if !open(second, third, fourth) {
		t.Error("another one is closed than the first")
	}
}

func TestAConnectionThatHasCompletedAnAdmissionOutlastsStrangers(t *testing.T) {
	b := newBounded(t, 4, admits())
	apiServer := b.peer(t)
	if err := apiServer.admit(t); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		b.dial(t)
	}
	if err := apiServer.admit(t); err != nil || !apiServer.reused {
		t.Errorf("after 50 stalled connections: %v, reused %v", err, apiServer.reused)
	}
}

func TestConnectionsThatHaveCompletedAnAdmissionKeepNobodyOut(t *testing.T) {
	b := newBounded(t, 8, admits())
	for range 20 {
		if err := b.peer(t).admit(t); err != nil {
			t.Fatal(err)
		}
	}
	busy, late := b.peer(t), b.peer(t)
	for range 20 {
		if err := errors.Join(busy.admit(t), late.admit(t), b.peer(t).admit(t)); err != nil {
			t.Fatal(err)
		}
		b.dial(t)
	}
	if err := errors.Join(busy.admit(t), late.admit(t)); err != nil || !busy.reused || !late.reused {
		t.Errorf("connections in use are closed: %v", err)
	}
}

func TestAConnectionWithARequestThatIsAnsweredIsNotClosed(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	b := newBounded(t, 2, named(unique("bounded"), func(context.Context, *extension.Request) error {
		entered <- struct{}{}
		<-release
		return nil
	}))
	results := make(chan error, 2)
	for range 2 {
		go func() { results <- b.peer(t).admit(t) }()
		<-entered
	}
	<-b.dial(t) // a third connection is not accepted while both others are in use
	close(release)
	if err := errors.Join(<-results, <-results); err != nil {
		t.Error(err)
	}
}

// handshake returns how long a handshake takes to fail.
func handshake(t *testing.T, address string) time.Duration {
	t.Helper()
	began := time.Now()
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}, Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", address)
	if err == nil {
		_ = conn.Close()
		t.Error("the handshake succeeds")
	}
	return time.Since(began)
}

func TestAHandshakeWithoutACertificateFailsAtOnce(t *testing.T) {
	port := int(freeport.For(t))
	server := webhook.NewServer(webhook.ServerOptions{
		Host: "127.0.0.1", Port: port,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return nil, errors.New("there is no certificate yet")
		},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	if err := server.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	handshake(t, address) // the first may wait for half a second
	for range 3 {
		if took := handshake(t, address); took > 10*time.Second {
			t.Errorf("before the start it takes %s", took)
		}
	}
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	until(t, "it has started", func() bool { return server.StartedChecker()(nil) == nil })
	if took := handshake(t, address); took > 10*time.Second {
		t.Errorf("without a certificate it takes %s", took)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAServerThatIsClosedBeforeItStartsLeavesNothing(t *testing.T) {
	server := webhook.NewServer(webhook.ServerOptions{Host: "127.0.0.1", Port: int(freeport.For(t))})
	if err := server.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestAHeaderAndABodyMustComeWithinSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for deadlines of 5 and 10 s")
	}
	b := newBounded(t, 10, admits())
	for name, test := range map[string]struct {
		text string
		most time.Duration
		want string
	}{
		"half a header": {"POST / HTTP/1.1\r\nHost: a\r\n", 6 * time.Second, ""},
		"half a body":   {"POST " + b.path + " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", 11 * time.Second, "408 Request Timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: b.roots}}).DialContext(t.Context(), "tcp", b.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			began := time.Now()
			if _, err := io.WriteString(conn, test.text); err != nil {
				t.Fatal(err)
			}
			status, _ := bufio.NewReader(conn).ReadString('\n')
			if took := time.Since(began); took > test.most || !strings.Contains(status, test.want) {
				t.Errorf("%q after %s", status, took)
			}
		})
	}
}

func TestAnAnswerThatNobodyReadsIsGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a deadline of 5 s")
	}
	server, path := listen(t, false, webhook.HandlerOptions{}, extension.Mutating(mutate(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		pod.Annotations = map[string]string{"a": strings.Repeat("a", 16<<20)} // more than the kernel buffers
		return nil
	}), extension.Scope{Name: unique("unread")}))
	conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := hostilePod("{}", 1)
	if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the server gives the answer up", func(context.Context) bool {
		return sum(t, "admitkit_webhook_duration_seconds", map[string]string{"webhook": path, "code": "200"}) == 1
	})
}
