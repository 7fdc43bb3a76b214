//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/admitkit/admitkit/internal/testkit"
)

// user is a person with a client certificate.
type user struct{ kubeconfig string }

// newUser returns a user whose client certificate the cluster has signed:
// https://kubernetes.io/docs/tasks/tls/certificate-issue-client-csr/
func newUser(t *testing.T, name string, groups ...string) user {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := signed(t.Context(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile, InsecureSkipTLSVerify: config.Insecure,
	}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: certificate, ClientKeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}
	kubeconfig.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "c"
	file, err := os.CreateTemp(files, name+"-*.kubeconfig") // tests share names
	if err == nil {
		err = errors.Join(file.Close(), clientcmd.WriteToFile(*kubeconfig, file.Name()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return user{file.Name()}
}

// signed approves a certificate request and returns the certificate.
func signed(ctx context.Context, pemRequest []byte) (certificate []byte, err error) {
	requests := clientset.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: prefix},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pemRequest, SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, requests.Delete(ctx, request.Name, metav1.DeleteOptions{})) }()
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	})
	if _, err := requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	err = testkit.Poll(ctx, 30*time.Second, "the certificate is signed", func(ctx context.Context) error {
		now, err := requests.Get(ctx, request.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if certificate = now.Status.Certificate; len(certificate) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	return certificate, err
}

// kubectl runs kubectl as the user and returns its standard output.
func (u user) kubectl(ctx context.Context, args ...string) (string, error) {
	return command(ctx, u.kubeconfig, append([]string{"kubectl"}, args...)...)
}
