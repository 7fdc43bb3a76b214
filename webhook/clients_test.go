package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/webhook"
)

// guarded is a server that verifies its clients.
type guarded struct {
	url   string
	roots *x509.CertPool
}

func serveGuarded(t *testing.T, options webhook.ServerOptions) guarded {
	t.Helper()
	leaf, roots := issued(t)
	options.Host, options.Port = "127.0.0.1", int(freeport.For(t))
	options.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return leaf, nil }
	server := webhook.NewServer(options)
	server.Register("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, tls.CipherSuiteName(r.TLS.CipherSuite))
	}))
	ctx, cancel := context.WithCancel(t.Context())
	if err := server.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return guarded{fmt.Sprintf("https://127.0.0.1:%d/", options.Port), roots}
}

// ask sends a request by a new connection.
func (g guarded) ask(t *testing.T, config *tls.Config) (string, error) {
	t.Helper()
	config.RootCAs = g.roots
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	return get(t, &http.Client{Transport: transport}, g.url)
}

func TestOnlyClientsWithACertificateOfTheCAAndANamedOneMayConnect(t *testing.T) {
	ca, other := testkit.NewClientCA(t), testkit.NewClientCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	ca.Write(t, file)
	for name, test := range map[string]struct {
		certificate *tls.Certificate
		refusal     string
	}{
		"an API server":                 {ca.Issue(t, "kube-apiserver", x509.ExtKeyUsageClientAuth), ""},
		"an API server by its DNS name": {ca.Issue(t, "x", x509.ExtKeyUsageClientAuth, "api.example.com"), ""},
		"nobody":                        {nil, "no client certificate"},
		"another client of the CA":      {ca.Issue(t, "mallory", x509.ExtKeyUsageClientAuth), `"mallory", and only kube-apiserver, api.example.com may connect`},
		"one with a very long name":     {ca.Issue(t, strings.Repeat("m", 5000), x509.ExtKeyUsageClientAuth), "mmm..."},
		"a server with that name":       {ca.Issue(t, "kube-apiserver", x509.ExtKeyUsageServerAuth), "incompatible key usage"},
		"that name, for any use":        {ca.Issue(t, "kube-apiserver", x509.ExtKeyUsageAny), "does not name the extended key usage clientAuth"},
		"that name, signed by somebody": {other.Issue(t, "kube-apiserver", x509.ExtKeyUsageClientAuth), "unknown authority"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			core, logs := observer.New(zap.InfoLevel)
			clients, err := webhook.NewClients(webhook.ClientsOptions{CAFile: file, Names: []string{"kube-apiserver", "api.example.com"}, Logger: zap.New(core)})
			if err != nil {
				t.Fatal(err)
			}
			server := serveGuarded(t, webhook.ServerOptions{Clients: clients})
			_, err = server.ask(t, &tls.Config{MinVersion: version, MaxVersion: version, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if test.certificate == nil {
					return &tls.Certificate{}, nil
				}
				return test.certificate, nil
			}})
			if (err == nil) != (test.refusal == "") {
				t.Errorf("%s, %s: %v", name, tls.VersionName(version), err)
			}
			said := logs.FilterMessage("a client was refused").All()
			if test.refusal == "" {
				if len(said) > 0 {
					t.Errorf("%s: the log says %v", name, said)
				}
				continue
			}
			if len(said) != 1 || !strings.Contains(said[0].ContextMap()["error"].(string), test.refusal) || len(said[0].ContextMap()["error"].(string)) > 600 {
				t.Errorf("%s, %s: the log says %v, want %q", name, tls.VersionName(version), said, test.refusal)
			}
		}
	}
}

func TestTheCAOfClientsIsReadAgainAndDecidesAboutResumedSessionsToo(t *testing.T) {
	old, next := testkit.NewClientCA(t), testkit.NewClientCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	old.Write(t, file)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	core, logs := observer.New(zap.InfoLevel)
	clients, err := webhook.NewClients(webhook.ClientsOptions{CAFile: file, Clock: clock, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	server := serveGuarded(t, webhook.ServerOptions{Clients: clients})
	as := func(ca *testkit.ClientCA) *tls.Config {
		return &tls.Config{ClientSessionCache: tls.NewLRUClientSessionCache(8), Certificates: []tls.Certificate{*ca.Issue(t, "kube-apiserver", x509.ExtKeyUsageClientAuth)}}
	}
	asOld, asNext := as(old), as(next)
	for range 2 { // the second resumes the session of the first
		if _, err := server.ask(t, asOld); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := server.ask(t, asNext); err == nil {
		t.Error("the next CA is trusted before it is in the file")
	}
	if err := os.WriteFile(file, []byte("rubble"), 0o600); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(11 * time.Second))
	if _, err := server.ask(t, asOld); err != nil {
		t.Errorf("while the file is damaged: %v", err)
	}
	if logs.FilterMessageSnippet("cannot be read again").Len() == 0 {
		t.Error("nothing says that the file is damaged")
	}
	next.Write(t, file)
	clock.SetTime(clock.Now().Add(11 * time.Second))
	if _, err := server.ask(t, asNext); err != nil {
		t.Errorf("the next CA is in the file: %v", err)
	}
	if _, err := server.ask(t, asOld); err == nil {
		t.Error("a session of the old CA is resumed")
	}
}

// keeps returns a client that keeps its connection.
func (g guarded) keeps(t *testing.T, certificate *tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: g.roots, Certificates: []tls.Certificate{*certificate}}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A handshake of these clients would fail, so an answer means that it came by the open connection.
func TestAnOpenConnectionEndsWithItsCertificateAndWithTheCA(t *testing.T) {
	for name, change := range map[string]func(file string, clock *clocktesting.FakePassiveClock){
		"the CA is replaced": func(file string, clock *clocktesting.FakePassiveClock) {
			testkit.NewClientCA(t).Write(t, file)
			clock.SetTime(clock.Now().Add(11 * time.Second))
		},
		"the certificate ends": func(_ string, clock *clocktesting.FakePassiveClock) { clock.SetTime(clock.Now().Add(61 * time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			ca, file := testkit.NewClientCA(t), filepath.Join(t.TempDir(), "ca.crt")
			ca.Write(t, file)
			clock := clocktesting.NewFakePassiveClock(time.Now())
			core, logs := observer.New(zap.InfoLevel)
			clients, err := webhook.NewClients(webhook.ClientsOptions{CAFile: file, Clock: clock, Logger: zap.New(core)})
			if err != nil {
				t.Fatal(err)
			}
			server := serveGuarded(t, webhook.ServerOptions{Clients: clients})
			client := server.keeps(t, ca.Issue(t, "kube-apiserver", x509.ExtKeyUsageClientAuth))
			for range 2 {
				if got, err := get(t, client, server.url); err != nil || strings.Contains(got, "certificate") {
					t.Fatalf("%q, %v", got, err)
				}
			}
			change(file, clock)
			if got, err := get(t, client, server.url); err != nil || !strings.Contains(got, "the client certificate: ") {
				t.Errorf("the open connection got %q, %v", got, err)
			}
			if logs.FilterMessage("a client was refused").Len() != 1 {
				t.Errorf("the log says %v", logs.All())
			}
			if got, err := get(t, client, server.url); err == nil {
				t.Errorf("it stayed open: %q", got)
			}
		})
	}
}

func TestTheCAOfClientsIsWrong(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for want, options := range map[string]webhook.ClientsOptions{
		"is no regular file":        {CAFile: folder}, // as a named pipe is none
		"no such file":              {CAFile: filepath.Join(folder, "missing")},
		"has no certificate in PEM": {CAFile: write("rubble", []byte("rubble"))},
		"more than 1048576 bytes":   {CAFile: write("large", make([]byte, 1<<20+1))},
		"at most 64":                {Names: make([]string, 65)},
		"is empty":                  {Names: []string{""}},
	} {
		if _, err := webhook.NewClients(options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestTheServerKeepsToItsVersionAndCipherSuitesOfTLS(t *testing.T) {
	server := serveGuarded(t, webhook.ServerOptions{MinVersion: tls.VersionTLS13})
	if _, err := server.ask(t, &tls.Config{MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is accepted where 1.3 is the least")
	}
	if _, err := server.ask(t, &tls.Config{}); err != nil {
		t.Error(err)
	}
	const suite = tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	server = serveGuarded(t, webhook.ServerOptions{CipherSuites: []uint16{suite}})
	if got, err := server.ask(t, &tls.Config{MaxVersion: tls.VersionTLS12}); err != nil || got != "HTTP/1.1 "+tls.CipherSuiteName(suite) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := server.ask(t, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}); err == nil {
		t.Error("another cipher suite is accepted")
	}
}
