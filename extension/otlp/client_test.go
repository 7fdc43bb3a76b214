package otlp_test

import (
	"context"
	"crypto/tls"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/extension/otlp"
	"github.com/admitkit/admitkit/internal/testkit"
)

func TestRecordsWaitForATokenThatTheCollectorAccepts(t *testing.T) {
	c := newCollector(t)
	c.set(func(w http.ResponseWriter, r *http.Request, _ []string) bool {
		if r.Header.Get("Authorization") != "Bearer new" {
			w.WriteHeader(http.StatusUnauthorized)
			return false
		}
		return true
	})
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, []byte("old\n"))
	options := quick("token", c.URL, t.TempDir())
	options.Endpoint.TokenFile = token
	logs := otlp.NewLogs(options)
	send(t, logs, "1")
	_, lines := run(t, logs)
	c.await(t, "the old token is refused", func() bool { return metric(t, "admitkit_otlp_failures_total", "token", "unauthorized") > 0 })
	write(t, token, []byte("new\n"))
	c.awaitRecords(t, 1)
	said := lines.FilterMessage("batch not delivered").FilterLevelExact(zap.ErrorLevel).All()
	if len(said) == 0 || !strings.Contains(said[0].ContextMap()["error"].(string), "401 Unauthorized; check the token") {
		t.Errorf("the log has %v", lines.All())
	}
}

func TestCertificatesAreReadAgainWhenTheyRotate(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	// serve starts a collector that knows an authority only.
	serve := func(a *authority, listener net.Listener) *collector {
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
	_, _, certPEM, keyPEM := sign(t, before)
	write(t, ca, before.pem)
	write(t, cert, certPEM)
	write(t, key, keyPEM)
	first := serve(before, nil)
	logs := otlp.NewLogs(otlp.LogOptions{Name: "rotation", Endpoint: otlp.Endpoint{URL: first.URL, CAFile: ca, CertFile: cert, KeyFile: key}})
	send(t, logs, "1", "2")

	address := first.Listener.Addr().String()
	first.Close()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	second := serve(after, listener)
	testkit.Eventually(t, "the collector's new certificate is not trusted", func(context.Context) bool { // at first, the old connection is broken
		err := logs.Send(t.Context(), "3", record("3"))
		return err != nil && strings.Contains(err.Error(), "certificate")
	})
	_, _, certPEM, keyPEM = sign(t, after)
	write(t, ca, after.pem)
	write(t, cert, certPEM) // without its key, as in the middle of a rotation
	if err := logs.Send(t.Context(), "3", record("3")); err == nil || !strings.Contains(err.Error(), "CertFile "+cert+" and KeyFile "+key) {
		t.Errorf("got %v, want the files that do not fit", err)
	}
	write(t, key, keyPEM)
	send(t, logs, "3")
	if got := strings.Join(append(first.ids(), second.ids()...), " "); got != "1 2 3" {
		t.Errorf("the collectors have %s", got)
	}
}

func TestWhileAFileCannotBeReadTheLastOneServes(t *testing.T) {
	c := newCollector(t)
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, []byte("good"))
	endpoint := otlp.Endpoint{URL: c.URL, TokenFile: token}
	logs := otlp.NewLogs(otlp.LogOptions{Name: "torn", Endpoint: endpoint})
	send(t, logs, "1")
	write(t, token, nil)
	c.set(func(_ http.ResponseWriter, r *http.Request, _ []string) bool {
		return r.Header.Get("Authorization") == "Bearer good"
	})
	send(t, logs, "2")
	if got := strings.Join(c.ids(), " "); got != "1 2" {
		t.Errorf("the collector has %s", got)
	}
	c.set(status(http.StatusForbidden))
	if err := logs.Send(t.Context(), "3", record("3")); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), token+" must have the token alone") {
		t.Errorf("got %v, want the status and the file", err)
	}
}

func TestAFileThatIsWrongFailsTheStart(t *testing.T) {
	dir := t.TempDir()
	path := func(name, text string) string {
		write(t, filepath.Join(dir, name), []byte(text))
		return filepath.Join(dir, name)
	}
	for want, endpoint := range map[string]otlp.Endpoint{
		"Endpoint.TokenFile: open /none":                     {TokenFile: "/none"},
		"Endpoint.TokenFile: " + dir + "/two must have the":  {TokenFile: path("two", "a\nb")},
		"Endpoint.CAFile: " + dir + "/ca has no certificate": {CAFile: path("ca", "x")},
		"Endpoint.CertFile " + dir + "/cert":                 {CertFile: path("cert", "x"), KeyFile: path("key", "x")},
		"more than 1048576 bytes":                            {CAFile: path("large", strings.Repeat("x", 1<<20+1))},
	} {
		endpoint.URL = "https://127.0.0.1:1"
		mgr, _, _ := host(t)
		if err := otlp.NewLogs(otlp.LogOptions{Name: "files", Endpoint: endpoint}).Register(mgr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	other := newCollector(t)
	c := newCollector(t)
	c.set(func(w http.ResponseWriter, r *http.Request, _ []string) bool {
		http.Redirect(w, r, other.URL+"/v1/logs?key=s3cr3t", http.StatusTemporaryRedirect)
		return false
	})
	logs := otlp.NewLogs(quick("redirect", c.URL, ""))
	err := logs.Send(t.Context(), "1", record("1"))
	if err == nil || !strings.Contains(err.Error(), "redirects are not followed") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v", err)
	}
	if got := other.ids(); len(got) > 0 {
		t.Errorf("the other one has %v", got)
	}
}

func TestAFailureDoesNotTellTheAddress(t *testing.T) {
	logs := otlp.NewLogs(quick("address", "http://user:s3cr3t@127.0.0.1:1", ""))
	if err := logs.Send(t.Context(), "1", record("1")); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v, want an error without the URL", err)
	}
}

func TestAnAnswerThatDoesNotEndIsNoDelivery(t *testing.T) {
	for want, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"its answer did not end": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("a"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"more than 65536 bytes": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10+1)) },
		"":                      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) },
	} {
		server := httptest.NewServer(http.HandlerFunc(answer))
		t.Cleanup(server.Close)
		limit := time.Minute
		if strings.Contains(want, "did not end") {
			limit = time.Second
		}
		logs := otlp.NewLogs(otlp.LogOptions{Name: "unended", Endpoint: otlp.Endpoint{URL: server.URL, Timeout: limit}})
		err := logs.Send(t.Context(), "1", record("1"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
