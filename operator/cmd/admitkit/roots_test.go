package main

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

// rootsVariable has the endpoint for a process that is to say what it trusts.
const rootsVariable = "ADMITKIT_TEST_ROOTS"

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(rootsVariable); endpoint != "" {
		fmt.Println(trusts(endpoint))
		return
	}
	code := m.Run()
	testkit.EndRenderer()
	os.Exit(code)
}

// trusts says how many roots there are, and whether the endpoint has one of them.
func trusts(endpoint string) string {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return err.Error()
	}
	said := fmt.Sprintf("%d roots: ", len(pool.Subjects())) //nolint:staticcheck // on Linux it has them all
	response, err := http.Get(endpoint)                     //nolint:noctx // the process is as short as the call
	if err != nil {
		return said + err.Error()
	}
	return said + response.Status + fmt.Sprint(response.Body.Close())
}

// Which roots there are is decided once in a process, so that each case has one.
func TestInAnImageWithoutRootsThePublicOnesAreTrustedOrThoseOfSSLCertFile(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	own := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(own, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"/none": `^[1-9][0-9]{2} roots: .* signed by unknown authority`,
		own:     `^1 roots: 404 Not Found`,
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), rootsVariable+"="+server.URL, "SSL_CERT_FILE="+file, "SSL_CERT_DIR=/none")
		output, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(output) {
			t.Errorf("SSL_CERT_FILE=%s: %v: %s, want %s", file, err, output, want)
		}
	}
}
