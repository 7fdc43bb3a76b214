package certs

import (
	"context"
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
// read again.
const reloadInterval = 10 * time.Second

// FilesOptions are the options of [NewFiles].
type FilesOptions struct {
	// FS is the file system. Default: that of the operating system.
	FS afero.Fs
	// Dir is the folder. Required.
	Dir string
	// Publish makes clients trust the bundle. Default: the bundle is not published.
	Publish Publish
	// Clock is the real clock by default.
	Clock clock.WithTicker
	// Logger logs each new certificate and each failure to load one. Default: none.
	Logger *zap.Logger
}

// Files serves the certificate of a folder with the files tls.crt, tls.key and
// ca.crt. A mounted kubernetes.io/tls Secret has this form, cert-manager's
// included. A handshake reads the files again if that was last done ten seconds
// ago. If the files do not load, the last certificate stays in use and each
// failure is logged.
type Files struct {
	options FilesOptions

	mu     sync.Mutex
	cert   *tls.Certificate
	loaded time.Time
}

// NewFiles loads the folder once, to fail early.
func NewFiles(options FilesOptions) (*Files, error) {
	if options.FS == nil {
		options.FS = afero.NewOsFs()
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	f := &Files{options: options}
	cert, err := f.load()
	if err != nil {
		return nil, err
	}
	if _, err := f.Bundle(); err != nil {
		return nil, err
	}
	f.serve(cert)
	f.loaded = options.Clock.Now()
	return f, nil
}

// GetCertificate serves the certificate.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.options.Clock.Now(); now.Sub(f.loaded) >= reloadInterval {
		f.loaded = now
		cert, err := f.load()
		switch {
		case err != nil:
			// The files are being replaced right now, or were replaced by
			// something unusable. Either way the last pair serves best.
			f.options.Logger.Error("loading the certificate files failed, the last certificate stays in use",
				zap.Error(err), zap.Time("notAfter", f.cert.Leaf.NotAfter))
		case !sameChain(f.cert, cert):
			f.options.Logger.Info("certificate files loaded", zap.String("dir", f.options.Dir), zap.Time("notAfter", cert.Leaf.NotAfter))
			f.serve(cert)
		}
	}
	return f.cert, nil
}

func (f *Files) serve(cert *tls.Certificate) {
	f.cert = cert
	setValidity("leaf", f.options.Dir, cert.Leaf)
}

// ForHosts serves the same certificate, which must be valid for these hosts too.
func (f *Files) ForHosts(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	return onlyFor(hosts, f.options.Dir, f.GetCertificate)
}

// Bundle reads ca.crt: the certificates, in PEM, that a client should trust.
func (f *Files) Bundle() ([]byte, error) {
	return f.read("the CA bundle", corev1.ServiceAccountRootCAKey)
}

func (f *Files) load() (*tls.Certificate, error) {
	certPEM, err := f.read("the serving certificate", corev1.TLSCertKey)
	if err != nil {
		return nil, err
	}
	keyPEM, err := f.read("the serving certificate's key", corev1.TLSPrivateKeyKey)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("serving certificate in %s: %w", f.options.Dir, err)
	}
	return &cert, nil
}

func (f *Files) read(what, name string) ([]byte, error) {
	content, err := afero.ReadFile(f.options.FS, filepath.Join(f.options.Dir, name))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return content, nil
}

// SecretName returns "": files are not watched.
func (*Files) SecretName() string { return "" }

// Wait returns at once: NewFiles has loaded the certificate.
func (*Files) Wait(context.Context) error { return nil }

// Check publishes the bundle.
func (f *Files) Check(ctx context.Context) error {
	return publishKnown(ctx, f.options.Publish, f.Bundle)
}

// Run calls Check every eight seconds and on each trigger, until ctx ends. It logs
// failures.
func (f *Files) Run(ctx context.Context, trigger <-chan struct{}) {
	repeat(ctx, f.options.Clock, f.options.Logger, trigger, f.Check)
}
