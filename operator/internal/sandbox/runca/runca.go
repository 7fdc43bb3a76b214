// Package runca makes the certificate authorities with which the proxies of runs open TLS:
// a root of their own, which belongs in no caBundle, and for each run an intermediate that
// signs for two days, and no further authority.
package runca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// How long authorities are valid, and how much their clocks may differ from others.
const (
	RootLife = 10 * 365 * 24 * time.Hour
	RunLife  = 48 * time.Hour
	skew     = 5 * time.Minute
)

// Pair is a certificate with its key, in PEM.
type Pair struct{ Certificate, Key []byte }

// NewRoot makes a root.
func NewRoot(now time.Time) (*Pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "admitkit sandbox proxies"}, MaxPathLen: 1, NotAfter: now.Add(RootLife),
	}
	return sign(template, nil, nil, now)
}

// NewRun makes the authority of one run, under a root.
func NewRun(root *Pair, namespace, name string, now time.Time) (*Pair, error) {
	certificate, key, err := root.Parse()
	if err != nil {
		return nil, fmt.Errorf("the root of the proxies: %w", err)
	}
	end := now.Add(RunLife)
	if !certificate.IsCA || certificate.NotAfter.Before(end) {
		return nil, fmt.Errorf("the root of the proxies is no authority until %s: renew it", end.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName(namespace + "/" + name)}, MaxPathLen: 0, MaxPathLenZero: true, NotAfter: end,
	}
	return sign(template, certificate, key, now)
}

// commonName cuts a name to what X.509 allows.
func commonName(name string) string { return name[:min(len(name), 64)] }

// Parse returns the certificate and the key.
func (p *Pair) Parse() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(p.Certificate)
	if block == nil {
		return nil, nil, errors.New("there is no certificate in PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, err
	}
	if block, _ = pem.Decode(p.Key); block == nil {
		return nil, nil, errors.New("there is no key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, errors.New("the key is not one of PKCS #8")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(certificate.PublicKey) {
		return nil, nil, errors.New("the key is not the ECDSA key of the certificate")
	}
	return certificate, key, nil
}

// sign makes an authority, by itself if parent is nil.
func sign(template, parent *x509.Certificate, signer *ecdsa.PrivateKey, now time.Time) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	template.NotBefore, template.IsCA, template.BasicConstraintsValid = now.Add(-skew), true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}
