package manager_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

func TestACertificateOfSomebodyElseIsServedAndNoneMade(t *testing.T) {
	t.Parallel()
	namespace, dir := newNamespace(t), filesOf(t, "127.0.0.1")
	start(t, manager.Options{Namespaces: []string{namespace}, Certificates: manager.CertificateOptions{Dir: dir}}, mark("a", extension.Scope{}))
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
	r := newManager(t, manager.Options{Namespaces: []string{namespace}}, own)
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
	start(t, manager.Options{Namespaces: []string{namespace}, Port: port, Certificates: manager.CertificateOptions{Dir: dir}}, own)
	if _, err := own.getCertificate(nil); err != nil {
		t.Error(err)
	}
	other := newManager(t, manager.Options{Namespaces: []string{namespace}, Port: port, Certificates: manager.CertificateOptions{Dir: dir}},
		&server{markExtension: markExtension{"b"}, host: "other.svc"})
	if err := other.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "other.svc") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want an error that names the host and the folder", err)
	}
}

// The CA has been rotated a moment ago, so that another rotation waits for days.
func TestALeakedCAIsWithdrawnAtOnce(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, Port: freeport.For(t), Certificates: manager.CertificateOptions{PropagationDelay: time.Second}}
	r := start(t, options, mark("a", extension.Scope{}))
	eventuallyCalled(t, namespace, "marked")
	secrets := clientset.CoreV1().Secrets(namespace)
	request := func(value string, done func(*corev1.Secret) bool) *corev1.Secret {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, certs.RotateAnnotation, value)
		secret, err := secrets.Patch(t.Context(), "admitkit-setupcertificate", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the request "+value+" has an effect", func(ctx context.Context) bool {
			secret, err = secrets.Get(ctx, secret.Name, metav1.GetOptions{})
			return err == nil && done(secret)
		})
		return secret
	}
	rotated := request(certs.RotateNow, func(s *corev1.Secret) bool { return len(s.Data[certs.PreviousCertKey]) > 0 })
	said := request(certs.RotateNow, func(s *corev1.Secret) bool { return s.Annotations[certs.RotationAnnotation] != "" }).Annotations[certs.RotationAnnotation]
	until, _, _ := strings.Cut(strings.TrimPrefix(said, "a rotation waits: until "), ",")
	if end, err := time.Parse(time.RFC3339, until); err != nil || (certs.DefaultLeafLifetime-time.Until(end)).Abs() > time.Hour || !strings.Contains(said, "admitkit.dev/rotate=emergency") {
		t.Errorf("it says %q: %v", said, err)
	}
	testkit.Eventually(t, "an Event says it", func(ctx context.Context) bool {
		events, err := clientset.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + string(certs.RotationWaits)})
		return err == nil && len(events.Items) == 1 && events.Items[0].Message == said
	})
	if logs := r.logs.FilterMessage("certificates: RotationWaits").All(); len(logs) != 1 || logs[0].ContextMap()["reason"] != said {
		t.Errorf("the log says %v", logs)
	}
	checked := newManager(t, options, mark("a", extension.Scope{}))
	if err := checked.CheckRegistered(t.Context()); err != nil || checked.logs.FilterMessage(said).Len() != 1 {
		t.Errorf("check prints %v, %v", checked.logs.All(), err)
	}

	after := request(certs.RotateEmergency, func(s *corev1.Secret) bool { return !bytes.Equal(s.Data[certs.CertKey], rotated.Data[certs.CertKey]) })
	if len(after.Data[certs.PreviousCertKey])+len(after.Data[certs.NextCertKey]) > 0 || after.Annotations[certs.RotationAnnotation] != "" {
		t.Errorf("the Secret keeps %v", slices.Collect(maps.Keys(after.Data)))
	}
	testkit.Eventually(t, "API servers trust the new CA alone", func(ctx context.Context) bool {
		config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "admitkit."+namespace, metav1.GetOptions{})
		return err == nil && !slices.ContainsFunc(config.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
			return !bytes.Equal(w.ClientConfig.CABundle, after.Data[certs.CertKey])
		})
	})
	eventuallyCalled(t, namespace, "marked")
}
