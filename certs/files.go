package certs

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// reloadInterval is how long a certificate from files is served before they are
// looked at again.
const reloadInterval = 10 * time.Second

// Files serves a certificate from a folder with the files tls.crt, tls.key and
// ca.crt, which is how a kubernetes.io/tls Secret is mounted, cert-manager's
// included. The files are read again every ten seconds at most, and only when
// there is a handshake. A pair that does not load leaves the last one in use,
// and is logged as long as it stays.
type Files struct {
	fs    afero.Fs
	dir   string
	clock clock.PassiveClock
	log   *zap.Logger

	mu     sync.Mutex
	cert   *tls.Certificate
	loaded time.Time
}

// NewFiles loads the folder once, to fail early.
func NewFiles(fs afero.Fs, dir string, clock clock.PassiveClock, log *zap.Logger) (*Files, error) {
	f := &Files{fs: fs, dir: dir, clock: clock, log: log}
	cert, err := f.load()
	if err != nil {
		return nil, err
	}
	if _, err := f.Bundle(); err != nil {
		return nil, err
	}
	f.serve(cert)
	f.loaded = clock.Now()
	return f, nil
}

// GetCertificate serves the certificate; it has the form of the field in
// tls.Config.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.clock.Now(); now.Sub(f.loaded) >= reloadInterval {
		f.loaded = now
		cert, err := f.load()
		switch {
		case err != nil:
			// The files are being replaced right now, or were replaced by
			// something useless. Either way the last pair serves best.
			f.log.Error("certificate files not loaded, the last ones serve on", zap.Error(err), zap.Time("notAfter", f.cert.Leaf.NotAfter))
		case !sameChain(f.cert, cert):
			f.log.Info("certificate files loaded", zap.String("dir", f.dir), zap.Time("notAfter", cert.Leaf.NotAfter))
			f.serve(cert)
		}
	}
	return f.cert, nil
}

func (f *Files) serve(cert *tls.Certificate) {
	f.cert = cert
	expiry.WithLabelValues("leaf", f.dir).Set(float64(cert.Leaf.NotAfter.Unix()))
}

// Bundle reads ca.crt: the certificates, in PEM, that a client is to trust.
func (f *Files) Bundle() ([]byte, error) {
	bundle, err := afero.ReadFile(f.fs, filepath.Join(f.dir, corev1.ServiceAccountRootCAKey))
	if err != nil {
		return nil, fmt.Errorf("reading the CA bundle: %w", err)
	}
	return bundle, nil
}

func (f *Files) load() (*tls.Certificate, error) {
	certPEM, err := afero.ReadFile(f.fs, filepath.Join(f.dir, corev1.TLSCertKey))
	if err != nil {
		return nil, fmt.Errorf("reading the serving certificate: %w", err)
	}
	keyPEM, err := afero.ReadFile(f.fs, filepath.Join(f.dir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("reading the serving certificate's key: %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("serving certificate in %s: %w", f.dir, err)
	}
	return &cert, nil
}
