package manager_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/manager"
)

func TestACertificateOfSomebodyElseIsServedAndNoneMade(t *testing.T) {
	t.Parallel()
	namespace, dir := newNamespace(t), filesOf(t, "127.0.0.1")
	start(t, manager.Options{Namespace: namespace, Certificates: manager.CertificateOptions{Dir: dir}}, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	secrets, err := clientset.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 1 || secrets.Items[0].Name != "admitkit-paths" {
		t.Errorf("Secrets: %v, %v", secrets.Items, err)
	}
}

// filesOf makes a folder with a certificate for the hosts.
func filesOf(t *testing.T, hosts ...string) (dir string) {
	t.Helper()
	ca, err := certs.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.IssueLeaf(hosts, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, content := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca.crt":  ca.Bundle(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// server is an extension that serves a port of its own.
type server struct {
	markExtension
	host           string
	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

func (s *server) Register(mgr extension.Manager) (err error) {
	s.getCertificate, err = mgr.GetServingCertificate(s.host)
	return err
}

func TestAnExtensionServesItsOwnPortWithACertificateOfTheSameCA(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	own := &server{markExtension: markExtension{"a"}, host: "proxy." + namespace + ".svc"}
	r := newManager(t, manager.Options{Namespace: namespace}, own)
	early, err := r.GetServingCertificate("early.svc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early(nil); err == nil {
		t.Error("there is a certificate before the start")
	}
	r.run(t)
	<-r.Ready()
	config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit."+namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Webhooks[0].ClientConfig.CABundle)
	for host, serve := range map[string]func(*tls.ClientHelloInfo) (*tls.Certificate, error){own.host: own.getCertificate, "early.svc": early} {
		cert, err := serve(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Error(err)
		}
	}
}

func TestACertificateFromFilesServesAnExtensionOnlyIfItHasTheName(t *testing.T) {
	t.Parallel()
	dir := filesOf(t, "127.0.0.1", "proxy.svc")
	namespace := newNamespace(t)
	port := freeport.For(t)
	own := &server{markExtension: markExtension{"a"}, host: "proxy.svc"}
	start(t, manager.Options{Namespace: namespace, Port: port, Certificates: manager.CertificateOptions{Dir: dir}}, own)
	if _, err := own.getCertificate(nil); err != nil {
		t.Error(err)
	}
	other := newManager(t, manager.Options{Namespace: namespace, Port: port, Certificates: manager.CertificateOptions{Dir: dir}},
		&server{markExtension: markExtension{"b"}, host: "other.svc"})
	if err := other.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "other.svc") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want an error that names the host and the folder", err)
	}
}
