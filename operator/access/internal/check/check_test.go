package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/extension/remote"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// server answers like a check, and returns a client that trusts it.
func server(t *testing.T, handler http.HandlerFunc, change ...func(*Endpoint)) *Client {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(s.Close)
	endpoint := Endpoint{URL: s.URL + "/path?secret=s3cr3t", Timeout: 20 * time.Second, CABundle: certificateOf(s), Connections: 2}
	for _, fn := range change {
		fn(&endpoint)
	}
	c := NewClient(endpoint)
	t.Cleanup(c.Close)
	return c
}

func certificateOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

func TestOnlyAClearAnswerIsAnAnswer(t *testing.T) {
	t.Parallel()
	for sentence, c := range map[string]struct {
		answer  http.HandlerFunc
		reason  string
		message string
	}{
		"allow":                 {says(`{"decision":"Allow"}`), "", ""},
		"deny":                  {says(`{"decision":"Deny","message":"no window"}`), "", "no window"},
		"shorten":               {says(` {"decision":"Allow","message":"","maxDurationSeconds":60} `), "", ""},
		"nothing":               {says(``), Invalid, "its answer is not valid"},
		"an empty object":       {says(`{}`), Invalid, "decision must be Allow or Deny"},
		"null":                  {says(`null`), Invalid, "decision must be Allow or Deny"},
		"garbage":               {says(`<html>ok</html>`), Invalid, "its answer is not valid"},
		"a bare word":           {says(`"Allow"`), Invalid, "its answer is not valid"},
		"a list":                {says(`[{"decision":"Allow"}]`), Invalid, "its answer is not valid"},
		"another word":          {says(`{"decision":"allow"}`), Invalid, "decision must be Allow or Deny"},
		"an unknown field":      {says(`{"decision":"Allow","maxDuration":"1m"}`), Invalid, `unknown field "maxDuration"`},
		"a field in other case": {says(`{"Decision":"Allow","decision":"Deny"}`), Invalid, `unknown field "Decision"`},
		"a field twice":         {says(`{"decision":"Deny","decision":"Allow"}`), Invalid, "duplicate field"},
		"two values":            {says(`{"decision":"Allow"}{"decision":"Deny"}`), Invalid, "its answer is not valid"},
		"no time at all":        {says(`{"decision":"Allow","maxDurationSeconds":0}`), Invalid, "at least 1"},
		"less than no time":     {says(`{"decision":"Allow","maxDurationSeconds":-5}`), Invalid, "at least 1"},
		"a fraction":            {says(`{"decision":"Allow","maxDurationSeconds":1.5}`), Invalid, "its answer is not valid"},
		"11 MiB": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"decision":"Allow","message":"` + strings.Repeat("a", 11<<20) + `"}`))
		}, Invalid, "more than 65536 bytes"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("the redirect was followed")
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, Status, "307"},
		"an error with an answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(`{"decision":"Allow"}`))
		}, Status, "500"},
		"accepted, for later": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write([]byte(`{"decision":"Allow"}`))
		}, Status, "202"},
		"a connection that ends": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Unreachable, "cannot be reached"},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			answer, err := server(t, c.answer).Ask(t.Context(), Question{})
			if c.reason == "" {
				if err != nil || answer.Decision == "" || answer.Message != c.message {
					t.Errorf("got %+v, %v", answer, err)
				}
				return
			}
			failed, ok := errors.AsType[*Failure](err)
			if !ok || failed.Reason != c.reason || !strings.Contains(failed.Error(), c.message) || answer.Decision != "" {
				t.Errorf("got %+v, %v, want %s: %s", answer, err, c.reason, c.message)
			}
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the error has the URL: %v", err)
			}
		})
	}
}

func TestACheckThatHangsFailsWithinItsTime(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	for sentence, begin := range map[string]string{"before the answer": "", "in the middle of the answer": `{"decision":"Allow"`} {
		c := server(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(begin))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-ended:
			}
		}, func(e *Endpoint) { e.Timeout = 300 * time.Millisecond })
		_, err := c.Ask(t.Context(), Question{})
		if failed, ok := errors.AsType[*Failure](err); !ok || failed.Reason != Timeout {
			t.Errorf("%s: %v", sentence, err)
		}
	}
	close(ended)
}

func TestACheckOfAnotherAuthorityIsNotAsked(t *testing.T) {
	t.Parallel()
	ca, err := os.ReadFile("testdata/other-ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	for sentence, change := range map[string]func(*Endpoint){
		"another authority":           func(e *Endpoint) { e.CABundle = ca },
		"the authorities of a system": func(e *Endpoint) { e.CABundle = nil },
	} {
		asked := false
		_, err := server(t, func(http.ResponseWriter, *http.Request) { asked = true }, change).Ask(t.Context(), Question{})
		failed, ok := errors.AsType[*Failure](err)
		if !ok || failed.Reason != Unreachable || !strings.Contains(err.Error(), "certificate cannot be trusted") || asked {
			t.Errorf("%s: asked: %t: %v", sentence, asked, err)
		}
	}
}

func TestTheTokenAndTheAuthoritiesAreReadAgain(t *testing.T) {
	t.Parallel()
	var tokens []string
	var questions []Question
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("Authorization"))
		var q Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		questions = append(questions, q)
		_, _ = w.Write([]byte(`{"decision":"Allow"}`))
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := NewClient(Endpoint{URL: s.URL, Timeout: 20 * time.Second, TokenFile: token, CAFile: ca})
	t.Cleanup(c.Close)
	ask := func() error {
		_, err := c.Ask(context.WithoutCancel(t.Context()), Question{Name: "a", Requester: v1alpha1.Requester{Username: "alice"}})
		return err
	}
	if err := c.Ready(); err == nil || !strings.Contains(err.Error(), token) {
		t.Errorf("without the file it is ready: %v", err)
	}
	write(token, "one\n")
	write(ca, "none")
	if err := ask(); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("without a certificate: %v", err)
	}
	write(ca, string(certificateOf(s)))
	if err := errors.Join(c.Ready(), ask()); err != nil {
		t.Error(err)
	}
	write(token, "two")
	if err := ask(); err != nil {
		t.Error(err)
	}
	write(token, "two\nthree")
	if err := ask(); err == nil || !strings.Contains(err.Error(), "on one line") {
		t.Errorf("with two lines: %v", err)
	}
	write(token, strings.Repeat("a", remote.MaxFile+1))
	if err := ask(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("with a large file: %v", err)
	}
	if strings.Join(tokens, ", ") != "Bearer one, Bearer two" || len(questions) != 2 || questions[1].Requester.Username != "alice" {
		t.Errorf("asked with %q: %+v", tokens, questions)
	}
}

func TestTheClientCertificateOfTheMomentIsPresented(t *testing.T) {
	t.Parallel()
	ca, dir := testkit.NewClientCA(t), t.TempDir()
	names := make(chan string, 2)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].Subject.CommonName
		_, _ = w.Write([]byte(`{"decision":"Allow"}`))
	}))
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	c := NewClient(Endpoint{
		URL: s.URL, Timeout: 20 * time.Second, CABundle: certificateOf(s), CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
	})
	t.Cleanup(c.Close)
	for _, name := range []string{"first", "second"} {
		certFile, keyFile := ca.IssueFiles(t, dir, name)
		if err := errors.Join(os.Rename(certFile, filepath.Join(dir, "tls.crt")), os.Rename(keyFile, filepath.Join(dir, "tls.key"))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Ask(t.Context(), Question{}); err != nil {
			t.Fatal(err)
		}
		if got := <-names; got != name {
			t.Errorf("it presented %s, want %s", got, name)
		}
	}
}
