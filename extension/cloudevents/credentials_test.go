package cloudevents_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension/cloudevents"
	"github.com/admitkit/admitkit/extension/remote"
	"github.com/admitkit/admitkit/testing/fakes"
)

// pair makes a certificate of an issuer, or a self-signed authority, in PEM.
func pair(t *testing.T, name string, issuer *tls.Certificate) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: issuer == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, signer := template, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func write(t *testing.T, dir, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	// As a kubelet does: a reader sees the old file or the new one.
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// failed returns how often the requests of a sender failed for a reason.
func failed(t *testing.T, sender, reason string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "admitkit_cloudevents_failed_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == reason && metric.GetLabel()[1].GetValue() == sender {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return -1
}

func register(t *testing.T, s *cloudevents.Sender) error {
	t.Helper()
	mgr := fakes.NewManager()
	return s.Register(mgr)
}

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
	sender := cloudevents.New(cloudevents.Options{Name: "token", Source: "test", URL: endpoint.URL, TokenFile: write(t, dir, "token", []byte("first\n"))})
	if err := register(t, sender); err != nil {
		t.Fatal(err)
	}
	send(t, sender, 1)
	mu.Lock()
	valid = "second"
	mu.Unlock()
	if err := sender.Send(t.Context(), event("2")); err == nil || !strings.Contains(err.Error(), "401 Unauthorized: renew the token") {
		t.Errorf("got %v, want a refusal that says what to do", err)
	}
	write(t, dir, "token", []byte("second"))
	send(t, sender, 3)
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	send(t, sender, 4) // with the last token
	if got := failed(t, "token", "unauthorized"); got != 1 {
		t.Errorf("%v failures are counted, want 1", got)
	}
}

func TestAClientCertificateThatIsReplacedIsPresentedAtOnce(t *testing.T) {
	caCert, caKey := pair(t, "authority", nil)
	ca, err := tls.X509KeyPair(caCert, caKey)
	if err != nil {
		t.Fatal(err)
	}
	names := make(chan string, 10)
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].Subject.CommonName
	}))
	roots := x509.NewCertPool()
	roots.AddCert(ca.Leaf)
	endpoint.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
	endpoint.StartTLS()
	t.Cleanup(endpoint.Close)
	dir := t.TempDir()
	options := cloudevents.Options{
		Name: "mtls", Source: "test", URL: endpoint.URL,
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		CAFile: write(t, dir, "ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})),
	}
	sender := cloudevents.New(options)
	for i, name := range []string{"first", "second"} {
		cert, key := pair(t, name, &ca)
		write(t, dir, "tls.crt", cert)
		write(t, dir, "tls.key", key)
		if i == 0 {
			if err := register(t, sender); err != nil {
				t.Fatal(err)
			}
		}
		send(t, sender, 2*i, 2*i+1)
		for range 2 {
			if got := <-names; got != name {
				t.Errorf("presented %s, want %s", got, name)
			}
		}
	}
}

func TestARedirectIsAFailureThatKeepsSecrets(t *testing.T) {
	elsewhere := newCollector(t)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(elsewhere.URL, "http://", "http://user:s3cr3t@", 1)+"/s3cr3t?key=s3cr3t", http.StatusPermanentRedirect)
	}))
	t.Cleanup(endpoint.Close)
	sender := cloudevents.New(cloudevents.Options{
		Name: "redirect", Source: "test", URL: endpoint.URL, Header: http.Header{"Authorization": {"Bearer s3cr3t"}},
		// Even a client that would follow them does not.
		Client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return nil }},
	})
	err := sender.Send(t.Context(), event("1"))
	if err == nil || !strings.Contains(err.Error(), "308 Permanent Redirect, to "+elsewhere.URL+"; redirects are not followed") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v, want an error that names the target without its secrets", err)
	}
	if got := elsewhere.ids(); len(got) != 0 {
		t.Errorf("the target of the redirect got %v", got)
	}
	if got := failed(t, "redirect", "redirect"); got != 1 {
		t.Errorf("%v failures are counted, want 1", got)
	}
}

func TestWhoIsForbiddenKeepsEventsAndSaysSo(t *testing.T) {
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			endpoint := newCollector(t)
			forbidden := true
			endpoint.answer = func([]string) int {
				if forbidden {
					return code
				}
				return 0
			}
			core, logs := observer.New(zapcore.DebugLevel)
			name := strings.ToLower(http.StatusText(code))
			sender := cloudevents.New(cloudevents.Options{Name: name, Source: "test", URL: endpoint.URL, Dir: t.TempDir(), Backoff: time.Millisecond, MaxBackoff: time.Millisecond})
			send(t, sender, 1, 2)
			runWith(t, sender, zap.New(core))
			for range 3 {
				<-endpoint.notify
			}
			endpoint.mu.Lock()
			forbidden = false
			endpoint.mu.Unlock()
			endpoint.await(t, 2)
			lines := logs.FilterMessage("batch not delivered").All()
			if len(lines) == 0 || lines[0].Level != zapcore.ErrorLevel || failed(t, name, "unauthorized") < 3 || failed(t, name, "busy") != 0 {
				t.Errorf("logged %v, counted %v as unauthorized and %v as busy", lines, failed(t, name, "unauthorized"), failed(t, name, "busy"))
			}
		})
	}
}

func TestFilesThatAreNoCredentialsAreNamedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, "client", nil)
	certFile, keyFile := write(t, dir, "tls.crt", cert), write(t, dir, "tls.key", key)
	for what, c := range map[string]struct {
		options cloudevents.Options
		want    string
	}{
		"a token file that is missing":    {cloudevents.Options{TokenFile: filepath.Join(dir, "none")}, "none: no such file"},
		"a token file that is empty":      {cloudevents.Options{TokenFile: write(t, dir, "empty", []byte(" \n"))}, "empty must have the token alone"},
		"a token file of several lines":   {cloudevents.Options{TokenFile: write(t, dir, "lines", []byte("a\nb"))}, "lines must have the token alone"},
		"a token file that is too large":  {cloudevents.Options{TokenFile: write(t, dir, "large", make([]byte, remote.MaxFile+1))}, "more than 1048576 bytes"},
		"a certificate that is none":      {cloudevents.Options{CertFile: keyFile, KeyFile: keyFile}, "CertFile " + keyFile},
		"authorities that are none":       {cloudevents.Options{CAFile: keyFile}, "no certificate in PEM"},
		"a certificate without a key":     {cloudevents.Options{CertFile: certFile}, "need each other"},
		"a token beside an authorization": {cloudevents.Options{TokenFile: keyFile, Header: http.Header{"Authorization": {"x"}}}, "exclude each other"},
		"a certificate for somebody else's transport": {
			cloudevents.Options{CertFile: certFile, KeyFile: keyFile, Client: &http.Client{Transport: http.DefaultTransport}}, "configure its Transport",
		},
		"a source that is too long": {cloudevents.Options{Source: strings.Repeat("x", 1025)}, "at most 1024"},
	} {
		t.Run(what, func(t *testing.T) {
			c.options.Name, c.options.URL = "wrong", "https://127.0.0.1:1"
			if c.options.Source == "" {
				c.options.Source = "test"
			}
			sender := cloudevents.New(c.options)
			err := sender.Validate()
			if err == nil {
				err = register(t, sender)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error that says %q", err, c.want)
			}
		})
	}
}

func TestAnExtensionAttributeIsPartOfTheEvent(t *testing.T) {
	var body string
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body = string(text)
	}))
	t.Cleanup(endpoint.Close)
	sender := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: endpoint.URL})
	e := event("1")
	e.Extensions = map[string]string{"cluster": "blue"}
	if err := sender.Send(t.Context(), e); err != nil || !strings.Contains(body, `"cluster":"blue"`) {
		t.Errorf("%v: sent %s", err, body)
	}
	for _, name := range []string{"", "Cluster", "clus-ter", "data", "id", strings.Repeat("x", 21)} {
		e.Extensions = map[string]string{name: "blue"}
		if err := sender.Send(t.Context(), e); err == nil || !strings.Contains(err.Error(), "extension attribute") {
			t.Errorf("%q: got %v, want that this is no name", name, err)
		}
	}
}
