package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// ClientCA signs certificates of clients.
type ClientCA struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewClientCA makes a CA that is valid for an hour.
func NewClientCA(t testing.TB) *ClientCA {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "client-ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	key := newKey(t)
	certificate, err := x509.ParseCertificate(sign(t, template, template, key, key))
	if err != nil {
		t.Fatal(err)
	}
	return &ClientCA{certificate, key}
}

// Write writes the CA's certificate to a file.
func (c *ClientCA) Write(t testing.TB, path string) {
	t.Helper()
	writePEM(t, path, "CERTIFICATE", c.Certificate.Raw)
}

// Issue returns a certificate for a use.
func (c *ClientCA) Issue(t testing.TB, name string, use x509.ExtKeyUsage, dnsNames ...string) *tls.Certificate {
	t.Helper()
	key := newKey(t)
	der := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: dnsNames, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}, c.Certificate, key, c.key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// IssueFiles writes the certificate of a client, and its key, to files of a folder.
func (c *ClientCA) IssueFiles(t testing.TB, dir, name string) (certFile, keyFile string) {
	t.Helper()
	issued := c.Issue(t, name, x509.ExtKeyUsageClientAuth)
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	writePEM(t, certFile, "CERTIFICATE", issued.Certificate[0])
	der, err := x509.MarshalPKCS8PrivateKey(issued.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
	return certFile, keyFile
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) []byte {
	t.Helper()
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	var err error
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
