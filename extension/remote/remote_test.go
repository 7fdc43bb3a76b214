package remote_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/afero"

	"github.com/admitkit/admitkit/extension/remote"
)

func get(t *testing.T, connection *remote.Connection, url string) (status int, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := connection.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestARequestHasTheTokenThatTheFileHasNow(t *testing.T) {
	got := make(chan string, 4)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") }))
	t.Cleanup(server.Close)
	fs := afero.NewMemMapFs()
	client := remote.New(remote.Options{TokenFile: "token", Fs: fs})
	t.Cleanup(client.Close)
	if connection, err := client.Connect(); connection != nil || err == nil {
		t.Errorf("without the file: got %v, %v, want an error alone", connection, err)
	}
	for _, c := range []struct {
		text, want string
		wrong      bool
	}{
		{"one\n", "Bearer one", false},
		{"two", "Bearer two", false},
		{"", "Bearer two", true}, // as while the file is replaced
		{"three\nfour", "Bearer two", true},
		{strings.Repeat("x", remote.MaxFile+1), "Bearer two", true},
		{"five", "Bearer five", false},
	} {
		if err := afero.WriteFile(fs, "token", []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		connection, err := client.Connect()
		if (err != nil) != c.wrong {
			t.Errorf("%.10q: %v", c.text, err)
		}
		if _, err := get(t, connection, server.URL); err != nil {
			t.Fatal(err)
		}
		if sent := <-got; sent != c.want {
			t.Errorf("%.10q: sent %q, want %q", c.text, sent, c.want)
		}
	}
}

func TestARedirectIsNotFollowedAndAnErrorHasNoURL(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	connection, err := remote.New(remote.Options{}).Connect()
	if err != nil {
		t.Fatal(err)
	}
	if status, err := get(t, connection, server.URL); err != nil || status != http.StatusTemporaryRedirect || asked != 1 {
		t.Errorf("got %d, %v after %d requests, want the redirect itself", status, err, asked)
	}
	server.Close()
	if _, err := get(t, connection, server.URL+"/s3cr3t"); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v, want an error without the path", err)
	}
}

func TestTheAuthoritiesAreThoseOfTheFileOrTheBundle(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	text := certificate(server)
	path := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for sentence, c := range map[string]struct {
		options remote.Options
		trusted bool
	}{
		"the file has its authority":   {remote.Options{CAFile: path}, true},
		"the bundle has its authority": {remote.Options{CA: text}, true},
		"the system does not know it":  {remote.Options{}, false},
	} {
		client := remote.New(c.options)
		connection, err := client.Connect()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := get(t, connection, server.URL); (err == nil) != c.trusted {
			t.Errorf("%s: %v", sentence, err)
		}
		client.Close()
	}
	if _, err := remote.New(remote.Options{CA: []byte("none")}).Connect(); err == nil || !strings.Contains(err.Error(), "no certificate in PEM") {
		t.Errorf("got %v, want that the bundle has no certificate", err)
	}
}

func TestATransportOfOnesOwnIsUsed(t *testing.T) {
	used := false
	connection, err := remote.New(remote.Options{Client: http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		used = true
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})}}).Connect()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, connection, "http://example.com"); err != nil || !used {
		t.Errorf("used: %t, %v", used, err)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func certificate(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
