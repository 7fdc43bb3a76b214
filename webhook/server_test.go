package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server with one path and returns a client, the URL, the function
// that stops it, and where its result comes.
func serve(t *testing.T, lameDuck time.Duration, handler http.HandlerFunc) (*webhook.Server, *http.Client, string, context.CancelFunc, <-chan error) {
	t.Helper()
	leaf, roots := issued(t)
	port := int(freeport.For(t))
	server := webhook.NewServer(webhook.ServerOptions{
		Host: "127.0.0.1", Port: port, LameDuck: lameDuck,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return leaf, nil },
	})
	server.Register("/path", handler)
	if err := server.StartedChecker()(nil); err == nil {
		t.Error("ready before the start")
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	if err := server.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	t.Cleanup(client.CloseIdleConnections)
	return server, client, fmt.Sprintf("https://127.0.0.1:%d/path", port), cancel, done
}

// issued returns a certificate for 127.0.0.1, and whom to trust for it.
func issued(t *testing.T) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	ca, err := certs.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.IssueLeaf([]string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Bundle())
	return leaf, roots
}

func get(t *testing.T, client *http.Client, url string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.Proto + " " + string(body), err
}

// waitUntilRefused returns when nobody accepts connections at the address any more.
func waitUntilRefused(address string) {
	for {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		_ = conn.Close()
		time.Sleep(time.Millisecond)
	}
}

// lameDuck is long enough for a request on a busy machine.
const lameDuck = 10 * time.Second

func TestTheServerGoesOnInItsLameDuckTimeAndLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	server, client, url, cancel, done := serve(t, lameDuck, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "slow" {
			entered <- struct{}{}
			<-release
		}
		if _, err := fmt.Fprint(w, r.Context().Err()); err != nil {
			t.Error(err)
		}
	})
	if body, err := get(t, client, url); err != nil || body != "HTTP/1.1 <nil>" {
		t.Fatalf("got %q, %v", body, err)
	}
	if err := server.StartedChecker()(nil); err != nil {
		t.Errorf("not ready: %v", err)
	}
	slow := make(chan string, 1)
	go func() {
		body, err := get(t, client, url+"?slow")
		slow <- fmt.Sprint(body, err)
	}()
	<-entered
	cancel()
	for server.StartedChecker()(nil) == nil {
		time.Sleep(time.Millisecond) // until the server has noticed
	}
	if body, err := get(t, client, url); err != nil || body != "HTTP/1.1 <nil>" {
		t.Errorf("in the lame-duck time: %q, %v", body, err)
	}
	waitUntilRefused(strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/path")) // the lame-duck time is over
	close(release)
	if got := <-slow; got != "HTTP/1.1 <nil><nil>" {
		t.Errorf("the request in flight: %q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAClientThatPrefersHTTP2IsAnsweredByHTTP1(t *testing.T) {
	_, client, url, cancel, done := serve(t, 0, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.WriteString(w, r.TLS.NegotiatedProtocol); err != nil {
			t.Error(err)
		}
	})
	if !client.Transport.(*http.Transport).ForceAttemptHTTP2 {
		t.Fatal("the client does not offer HTTP/2")
	}
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	// As many as an API server under load sends at a time to a webhook at a URL.
	var requests sync.WaitGroup
	for range 64 {
		requests.Go(func() {
			for range 10 {
				if body, err := get(t, client, url); err != nil || body != "HTTP/1.1 http/1.1" {
					t.Errorf("got %q, %v", body, err)
				}
			}
		})
	}
	requests.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestEachAnswerInTheLameDuckTimeIsTheLastOfItsConnection(t *testing.T) {
	t.Parallel()
	server, client, url, cancel, done := serve(t, lameDuck, func(http.ResponseWriter, *http.Request) {})
	reused := func() bool {
		var info httptrace.GotConnInfo
		ctx := httptrace.WithClientTrace(context.WithoutCancel(t.Context()), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { info = i }})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Error(err)
		}
		_ = response.Body.Close()
		return info.Reused
	}
	reused()
	if !reused() {
		t.Error("a server that does not drain got a new connection")
	}
	cancel()
	for server.StartedChecker()(nil) == nil {
		time.Sleep(time.Millisecond) // until the server has noticed
	}
	if !reused() {
		t.Error("the first request of the lame-duck time got a new connection")
	}
	if reused() {
		t.Error("a request of the lame-duck time went by a connection that had served one there")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAConnectionMadeWhileTheServerStopsDoesNotKeepIt(t *testing.T) {
	leaf, roots := issued(t)
	port := int(freeport.For(t))
	greeted, release := make(chan struct{}), make(chan struct{})
	server := webhook.NewServer(webhook.ServerOptions{
		Host: "127.0.0.1", Port: port,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			close(greeted)
			<-release
			return leaf, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := server.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	address := fmt.Sprintf("127.0.0.1:%d", port)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
	greeting := make(chan error, 1)
	go func() { greeting <- client.HandshakeContext(t.Context()) }()
	<-greeted
	cancel()
	waitUntilRefused(address) // the server has told the connections it knows
	close(release)
	if err := <-greeting; err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(webhook.ShutdownTimeout * 3 / 4):
		t.Error("the server still waits for a connection that asks nothing")
	}
}

func TestTheServerRefusesOldTLS(t *testing.T) {
	_, client, url, cancel, done := serve(t, 0, func(http.ResponseWriter, *http.Request) {})
	client.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	client.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS10
	if _, err := get(t, client, url); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAServerThatIsClosedEndsAtOnceAndSaysWhy(t *testing.T) {
	server, _, _, _, done := serve(t, time.Hour, func(http.ResponseWriter, *http.Request) {})
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// The endpoints of a Service as a client sees them: it takes them in turn, and
// learns of a server that is not ready, or ready again, some time later.
type endpoints struct {
	targets []*target
	next    atomic.Uint64
	mu      sync.RWMutex
	ready   []*target
}

// target is a server that comes and goes on one port.
type target struct {
	port    int
	current atomic.Pointer[webhook.Server]
}

// follow looks after the servers every so often, until ctx ends.
func (e *endpoints) follow(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		var ready []*target
		for _, target := range e.targets {
			if server := target.current.Load(); server != nil && server.StartedChecker()(nil) == nil {
				ready = append(ready, target)
			}
		}
		e.mu.Lock()
		e.ready = ready
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (e *endpoints) pick() *target {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.ready[e.next.Add(1)%uint64(len(e.ready))]
}

func TestNoRequestFailsWhileOneOfTwoServersRestarts(t *testing.T) {
	t.Parallel()
	requests, work := testkit.Long(10_000, 2000), testkit.Long(5*time.Millisecond, 50*time.Millisecond)
	certificate, roots := issued(t)
	ctx, cancel := context.WithCancel(t.Context())
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()

	// run serves on a target until stop is called, and drains.
	run := func(to *target) (stop func() error) {
		ctx, cancel := context.WithCancel(ctx)
		server := webhook.NewServer(webhook.ServerOptions{
			Host: "127.0.0.1", Port: to.port, LameDuck: lameDuck,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil },
		})
		server.Register("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(rand.N(work))
			if err := r.Context().Err(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
		done := make(chan error, 1)
		if err := server.Listen(ctx); err != nil {
			t.Fatal(err)
		}
		background.Go(func() { done <- server.Start(ctx) })
		to.current.Store(server)
		return func() error { cancel(); return <-done }
	}
	e := &endpoints{targets: []*target{{port: int(freeport.For(t))}, {port: int(freeport.For(t))}}}
	stopFirst := run(e.targets[0])
	run(e.targets[1])
	e.ready = e.targets
	testkit.Within(t, time.Minute, "both serve", func(context.Context) bool {
		return !slices.ContainsFunc(e.targets, func(to *target) bool { return to.current.Load().StartedChecker()(nil) != nil })
	})
	background.Go(func() { e.follow(ctx, 100*time.Millisecond) })

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 25}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var sent, failed, restarted atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			// The clients go on until the restart is over, and all is sent.
			for sent.Add(1) <= int64(requests) || restarted.Load() == 0 {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d/", e.pick().port), strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return
				}
				response, err := client.Do(r)
				if err == nil {
					_, err = io.Copy(io.Discard, response.Body)
					err = errors.Join(err, response.Body.Close())
				}
				if err != nil || response.StatusCode != http.StatusOK {
					failed.Add(1)
					t.Errorf("request %d: %v, %v", sent.Load(), response, err)
				}
			}
		})
	}
	for sent.Load() < int64(requests)/10 {
		time.Sleep(time.Millisecond) // until the load is on
	}
	if err := stopFirst(); err != nil {
		t.Error(err)
	}
	run(e.targets[0])
	restarted.Store(1)
	clients.Wait()
	fmt.Printf("FIGURE drain.requests=%d requests\nFIGURE drain.failed=%d requests\n", sent.Load(), failed.Load())
}
