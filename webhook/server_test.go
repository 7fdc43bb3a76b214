package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server with one path and returns a client, the URL, the function
// that stops it, and where its result comes.
func serve(t *testing.T, lameDuck time.Duration, handler http.HandlerFunc) (*webhook.Server, *http.Client, string, context.CancelFunc, <-chan error) {
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
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
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

func TestTheServerGoesOnInItsLameDuckTimeAndLetsRequestsFinish(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	server, client, url, cancel, done := serve(t, 200*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "slow" {
			entered <- struct{}{}
			<-release
		}
		if _, err := fmt.Fprint(w, r.Context().Err()); err != nil {
			t.Error(err)
		}
	})
	if body, err := get(t, client, url); err != nil || body != "HTTP/2.0 <nil>" {
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
	if body, err := get(t, client, url); err != nil || body != "HTTP/2.0 <nil>" {
		t.Errorf("in the lame-duck time: %q, %v", body, err)
	}
	for {
		conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/path"))
		if err != nil {
			break // the lame-duck time is over
		}
		_ = conn.Close()
		time.Sleep(time.Millisecond)
	}
	close(release)
	if got := <-slow; got != "HTTP/2.0 <nil><nil>" {
		t.Errorf("the request in flight: %q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
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
