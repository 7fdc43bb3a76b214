package deliver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/extension/remote"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/fakes"
)

func TestATokenThatIsReplacedIsUsedFromTheNextRequestOn(t *testing.T) {
	var mu sync.Mutex
	valid := "first"
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+valid {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(endpoint.Close)
	dir := t.TempDir()
	sender := newEvents(deliver.Options{Name: "token", URL: endpoint.URL, TokenFile: write(t, filepath.Join(dir, "token"), "first\n")})
	if err := sender.Register(fakes.NewManager()); err != nil {
		t.Fatal(err)
	}
	send(t, sender, "1")
	mu.Lock()
	valid = "second"
	mu.Unlock()
	if err := sender.put(t.Context(), "2"); err == nil || !strings.Contains(err.Error(), "401 Unauthorized; check the token") {
		t.Errorf("got %v, want a refusal that says what to do", err)
	}
	write(t, filepath.Join(dir, "token"), "second")
	send(t, sender, "3")
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	send(t, sender, "4") // with the last token
	if got := metric(t, "admitkit_cloudevents_failed_total", "token", "unauthorized"); got != 1 {
		t.Errorf("%v failures are counted, want 1", got)
	}
}

func TestAClientCertificateThatIsReplacedIsPresentedAtOnce(t *testing.T) {
	ca := newAuthority(t)
	names := make(chan string, 10)
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].Subject.CommonName
	}))
	endpoint.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(), MinVersion: tls.VersionTLS12}
	endpoint.StartTLS()
	t.Cleanup(endpoint.Close)
	dir := t.TempDir()
	options := deliver.Options{
		Name: "mtls", URL: endpoint.URL,
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		CAFile: write(t, filepath.Join(dir, "ca.crt"), pemOf("CERTIFICATE", endpoint.Certificate().Raw)),
	}
	sender := newEvents(options)
	for i, name := range []string{"first", "second"} {
		_, _, cert, key := sign(t, name, ca)
		write(t, options.CertFile, cert)
		write(t, options.KeyFile, key)
		if i == 0 {
			if err := sender.Register(fakes.NewManager()); err != nil {
				t.Fatal(err)
			}
		}
		send(t, sender, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
		for range 2 {
			if got := <-names; got != name {
				t.Errorf("presented %s, want %s", got, name)
			}
		}
	}
}

func TestRecordsWaitForATokenThatTheCollectorAccepts(t *testing.T) {
	c := newReceiver(t)
	c.set(func(w http.ResponseWriter, r *http.Request, _ []string) bool {
		if r.Header.Get("Authorization") != "Bearer new" {
			w.WriteHeader(http.StatusUnauthorized)
			return false
		}
		return true
	})
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "old\n")
	options := quick("token", c.URL, t.TempDir())
	options.TokenFile = token
	logs := newLogs(options)
	send(t, logs, "1")
	_, lines := run(t, logs)
	c.await(t, "the old token is refused", func() bool { return metric(t, "admitkit_otlp_failures_total", "token", "unauthorized") > 0 })
	write(t, token, "new\n")
	c.awaitAll(t, 1)
	said := lines.FilterMessage("batch not delivered").FilterLevelExact(zap.ErrorLevel).All()
	if len(said) == 0 || !strings.Contains(said[0].ContextMap()["error"].(string), "401 Unauthorized; check the token") {
		t.Errorf("the log has %v", lines.All())
	}
}

func TestCertificatesAreReadAgainWhenTheyRotate(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	// serve starts a collector that knows an authority only.
	serve := func(a *authority, listener net.Listener) *receiver {
		c := unstarted(t)
		if listener != nil {
			_ = c.Listener.Close()
			c.Listener = listener
		}
		c.TLS = &tls.Config{Certificates: []tls.Certificate{a.pair(t)}, ClientCAs: a.pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
		c.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
		c.StartTLS()
		t.Cleanup(c.Close)
		return c
	}
	before, after := newAuthority(t), newAuthority(t)
	_, _, certPEM, keyPEM := sign(t, "client", before)
	write(t, ca, before.pem)
	write(t, cert, certPEM)
	write(t, key, keyPEM)
	first := serve(before, nil)
	logs := newLogs(deliver.Options{Name: "rotation", URL: first.URL, CAFile: ca, CertFile: cert, KeyFile: key})
	send(t, logs, "1", "2")

	address := first.Listener.Addr().String()
	first.Close()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	second := serve(after, listener)
	testkit.Eventually(t, "the collector's new certificate is not trusted", func(context.Context) bool { // at first, the old connection is broken
		err := logs.put(t.Context(), "3")
		return err != nil && strings.Contains(err.Error(), "certificate")
	})
	_, _, certPEM, keyPEM = sign(t, "client", after)
	write(t, ca, after.pem)
	write(t, cert, certPEM) // without its key, as in the middle of a rotation
	if err := logs.put(t.Context(), "3"); err == nil || !strings.Contains(err.Error(), "CertFile "+cert+" and KeyFile "+key) {
		t.Errorf("got %v, want the files that do not fit", err)
	}
	write(t, key, keyPEM)
	send(t, logs, "3")
	if got := strings.Join(append(first.ids(), second.ids()...), " "); got != "1 2 3" {
		t.Errorf("the collectors have %s", got)
	}
}

func TestWhileAFileCannotBeReadTheLastOneServes(t *testing.T) {
	c := newReceiver(t)
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "good")
	logs := newLogs(deliver.Options{Name: "torn", URL: c.URL, TokenFile: token})
	send(t, logs, "1")
	write(t, token, "")
	c.set(func(_ http.ResponseWriter, r *http.Request, _ []string) bool {
		return r.Header.Get("Authorization") == "Bearer good"
	})
	send(t, logs, "2")
	if got := strings.Join(c.ids(), " "); got != "1 2" {
		t.Errorf("the collector has %s", got)
	}
	c.set(status(http.StatusForbidden))
	if err := logs.put(t.Context(), "3"); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), token+" must have the token alone") {
		t.Errorf("got %v, want the status and the file", err)
	}
}

func TestASenderThatIsForbiddenKeepsWhatItHasAndSaysSo(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
			c := newReceiver(t)
			c.set(status(code))
			name := strings.ToLower(http.StatusText(code))
			s := e.sender(quick(name, c.URL, t.TempDir()))
			send(t, s, "1", "2")
			_, lines := run(t, s)
			for range 3 {
				<-c.notify
			}
			c.set(nil)
			c.awaitAll(t, 2)
			said := lines.FilterMessage("batch not delivered").All()
			if len(said) == 0 || said[0].Level != zapcore.ErrorLevel || metric(t, e.failures, name, "unauthorized") < 3 || metric(t, e.failures, name, "busy") != 0 {
				t.Errorf("logged %v, counted %v as unauthorized and %v as busy", said, metric(t, e.failures, name, "unauthorized"), metric(t, e.failures, name, "busy"))
			}
		}
	})
}

func TestFilesThatAreNoCredentialsAreNamedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	path := func(name, text string) string { return write(t, filepath.Join(dir, name), text) }
	_, _, cert, key := sign(t, "client", newAuthority(t))
	certFile, keyFile := path("tls.crt", cert), path("tls.key", key)
	for what, c := range map[string]struct {
		options deliver.Options
		want    string
	}{
		"a token file that is missing":    {deliver.Options{TokenFile: filepath.Join(dir, "none")}, "TokenFile: open " + dir + "/none: no such file"},
		"a token file that is empty":      {deliver.Options{TokenFile: path("empty", " \n")}, "empty must have the token alone"},
		"a token file of several lines":   {deliver.Options{TokenFile: path("lines", "a\nb")}, "TokenFile: " + dir + "/lines must have the token alone"},
		"a token file that is too large":  {deliver.Options{TokenFile: path("large", strings.Repeat("x", remote.MaxFile+1))}, "more than 1048576 bytes"},
		"a certificate that is none":      {deliver.Options{CertFile: keyFile, KeyFile: keyFile}, "CertFile " + keyFile},
		"authorities that are none":       {deliver.Options{CAFile: keyFile}, "CAFile: " + keyFile + " has no certificate in PEM"},
		"authorities that are too large":  {deliver.Options{CAFile: path("authorities", strings.Repeat("x", remote.MaxFile+1))}, "more than 1048576 bytes"},
		"a certificate without a key":     {deliver.Options{CertFile: certFile}, "must be set together"},
		"a token beside an authorization": {deliver.Options{TokenFile: keyFile, Header: http.Header{"Authorization": {"x"}}}, "exclude each other"},
		"a certificate for somebody else's transport": {
			deliver.Options{CertFile: certFile, KeyFile: keyFile, Client: &http.Client{Transport: http.DefaultTransport}}, "configure its Transport",
		},
	} {
		t.Run(what, func(t *testing.T) {
			both(t, func(t *testing.T, e encoding) {
				c.options.Name, c.options.URL = "wrong", "https://127.0.0.1:1"
				s := e.sender(c.options)
				err := s.Validate()
				if err == nil {
					err = s.Register(fakes.NewManager())
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error that says %q", err, c.want)
				}
			})
		})
	}
	long := deliver.NewEvents(deliver.EventOptions{Options: deliver.Options{Name: "wrong", URL: "https://127.0.0.1:1"}, Source: strings.Repeat("x", 1025)})
	if err := long.Validate(); err == nil || !strings.Contains(err.Error(), "at most 1024") {
		t.Errorf("got %v, want that the source is too long", err)
	}
}
