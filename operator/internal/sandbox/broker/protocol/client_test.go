package protocol_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

func TestTheBrokerMayGetAnotherAuthority(t *testing.T) {
	before, after := testkit.NewClientCA(t), testkit.NewClientCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	before.Write(t, file)
	shown := before.Issue(t, "broker", x509.ExtKeyUsageServerAuth, "localhost")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "{}")
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown, nil }}
	server.StartTLS()
	t.Cleanup(server.Close)
	client, err := protocol.NewClient(protocol.ClientOptions{
		URL: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), CAFile: file,
		Token: func(context.Context) (string, error) { return "token", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Egress(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown = after.Issue(t, "broker", x509.ExtKeyUsageServerAuth, "localhost")
	if _, err := client.Egress(t.Context()); err == nil {
		t.Error("a broker is trusted whose authority the file does not have")
	}
	after.Write(t, file)
	if _, err := client.Egress(t.Context()); err != nil {
		t.Errorf("the file has its authority, and it is not trusted: %v", err)
	}
}
