package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"
)

// Default lifetimes of certificates.
const (
	DefaultCALifetime   = 365 * 24 * time.Hour
	DefaultLeafLifetime = 7 * 24 * time.Hour
)

// backdate is how long before now a certificate becomes valid, because the clock of an
// API server may be behind.
const backdate = time.Hour

// CA is a certificate authority. It is immutable.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes a self-signed ECDSA P-256 authority that is valid for lifetime.
func NewCA(now time.Time, lifetime time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the CA's key: %w", err)
	}
	template := &x509.Certificate{
		// Without a SerialNumber, CreateCertificate draws a random one (RFC 5280, 4.1.2.2).
		Subject:               pkix.Name{CommonName: "admitkit CA"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the CA's certificate: %w", err)
	}
	return &CA{cert: cert, key: key}, nil
}

// parseCA reads a CA from PEM. Its error names the part that is wrong.
func parseCA(certPEM, keyPEM []byte) (*CA, error) {
	certDER, err := decodePEM("the CA's certificate", certPEM)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, fmt.Errorf("parsing the CA's certificate: %w", err)
	}
	keyDER, err := decodePEM("the CA's key", keyPEM)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, fmt.Errorf("parsing the CA's key: %w", err)
	}
	key, isECDSA := parsed.(*ecdsa.PrivateKey)
	if !isECDSA {
		return nil, fmt.Errorf("the CA's key is a %T, not an ECDSA key", parsed)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the CA's key does not belong to its certificate")
	}
	return &CA{cert: cert, key: key}, nil
}

func decodePEM(what string, data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%s is missing", what)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", what)
	}
	return block.Bytes, nil
}

// usable reports whether the CA can sign leaves now, and if not, the reason.
func (ca *CA) usable(now time.Time) (usable bool, reason string) {
	switch {
	case !ca.cert.IsCA:
		return false, "the certificate is not that of a CA"
	case now.Before(ca.cert.NotBefore):
		return false, "the CA is not valid yet"
	case !now.Before(ca.cert.NotAfter):
		return false, "the CA has expired"
	}
	return true, ""
}

// renewalDue reports whether the CA needs a successor, and the reason: at most a third
// of its life is left.
func (ca *CA) renewalDue(now time.Time) (due bool, reason string) {
	if now.Before(renewal(ca.cert)) {
		return false, ""
	}
	return true, "two thirds of the CA's life are over"
}

// renewal returns the moment at which two thirds of a certificate's life are over. Its
// life began when it was made, which is later than NotBefore.
func renewal(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore) - backdate
	if life <= 0 {
		return cert.NotBefore
	}
	return cert.NotAfter.Add(-life / 3)
}

// notAfter returns the end of the CA's validity.
func (ca *CA) notAfter() time.Time { return ca.cert.NotAfter }

// Bundle returns the CA's certificate in PEM, for clients to trust.
func (ca *CA) Bundle() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// KeyPEM returns the CA's private key in PEM (PKCS #8).
func (ca *CA) KeyPEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return nil, fmt.Errorf("encoding the CA's key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// IssueLeaf signs a serving certificate with a new key for the hosts, which may be DNS
// names and IP addresses. It is valid for lifetime, but never longer than the CA.
func (ca *CA) IssueLeaf(hosts []string, now time.Time, lifetime time.Duration) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the leaf's key: %w", err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admitkit webhook"},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(lifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotBefore.Before(ca.cert.NotBefore) {
		template.NotBefore = ca.cert.NotBefore
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("signing the leaf: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the leaf: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// leafDue reports whether a leaf needs to be replaced, and the reason: two thirds of
// its life are over, for example, or this CA did not sign it.
func (ca *CA) leafDue(leaf *x509.Certificate, now time.Time) (due bool, reason string) {
	if leaf == nil {
		return true, "there is no leaf yet"
	}
	if err := leaf.CheckSignatureFrom(ca.cert); err != nil {
		return true, "the CA has changed"
	}
	if !now.Before(renewal(leaf)) {
		return true, "two thirds of the leaf's life are over"
	}
	if now.Before(leaf.NotBefore) {
		return true, "the leaf is not valid yet: the clock was set back"
	}
	return false, ""
}
