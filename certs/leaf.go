package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
)

// LeafOptions are the options of [NewLeaf].
type LeafOptions struct {
	// Secrets is the client for the Secret's namespace. The right to get this one
	// Secret is enough. Required.
	Secrets corev1client.SecretInterface
	// Namespace and Name identify the Secret. Required.
	Namespace, Name string
	// Publish makes clients trust the bundle. Default: the bundle is not published.
	Publish Publish
	// Clock is the real clock by default.
	Clock clock.WithTicker
	// Logger logs each new leaf and each failure to read one. Default: none.
	Logger *zap.Logger
}

// Leaf serves the leaf of a kubernetes.io/tls Secret that another process writes:
// an Authority with LeafName, or cert-manager. It never sees the CA's key.
type Leaf struct {
	options LeafOptions

	mu     sync.RWMutex
	leaf   *tls.Certificate
	bundle []byte
}

// NewLeaf returns a Leaf that holds nothing until Wait or Check is called.
func NewLeaf(options LeafOptions) *Leaf {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &Leaf{options: options}
}

// GetCertificate serves the leaf.
func (l *Leaf) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.leaf == nil {
		return nil, errNoCertificate
	}
	return l.leaf, nil
}

// ForHosts serves the same leaf, which must be valid for these hosts too: without
// the CA's key no other one can be signed.
func (l *Leaf) ForHosts(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	return onlyFor(hosts, "Secret "+l.name(), l.GetCertificate)
}

// Bundle returns ca.crt of the Secret: the certificates, in PEM, that a client
// should trust. It fails before the first Check.
func (l *Leaf) Bundle() ([]byte, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.leaf == nil {
		return nil, errNoCertificate
	}
	return l.bundle, nil
}

// SecretName returns the name of the leaf's Secret.
func (l *Leaf) SecretName() string { return l.options.Name }

// Wait returns when the Secret holds a leaf.
func (l *Leaf) Wait(ctx context.Context) error {
	return waitFor(ctx, l.options.Clock, l.options.Logger, "no leaf yet", l.read)
}

// Run calls Check every eight seconds and on each trigger, until ctx ends. It logs
// failures: the leaf at hand keeps serving.
func (l *Leaf) Run(ctx context.Context, trigger <-chan struct{}) {
	repeat(ctx, l.options.Clock, l.options.Logger, trigger, l.Check)
}

// Check reads the Secret and publishes the bundle. Once there is a leaf, a failure to
// read the Secret again is logged, and is no error.
func (l *Leaf) Check(ctx context.Context) error {
	err := l.read(ctx)
	if _, missing := l.GetCertificate(nil); err != nil && missing == nil {
		l.options.Logger.Warn("reading the leaf failed; serving the one that was read before", zap.Error(err))
		err = nil
	}
	return errors.Join(err, publishKnown(ctx, l.options.Publish, l.Bundle))
}

func (l *Leaf) read(ctx context.Context) error {
	secret, err := l.options.Secrets.Get(ctx, l.options.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no leaf in Secret %s: %w", l.name(), errNotYet)
	}
	if err != nil {
		return fmt.Errorf("reading the leaf from Secret %s: %w", l.name(), err)
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("no leaf in Secret %s: %w: %w", l.name(), err, errNotYet)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaf == nil || !sameChain(l.leaf, &pair) {
		l.options.Logger.Info("leaf certificate read", zap.String("secret", l.name()), zap.Time("notAfter", pair.Leaf.NotAfter))
		setValidity("leaf", l.name(), pair.Leaf)
	}
	l.leaf, l.bundle = &pair, secret.Data[CertKey]
	return nil
}

func (l *Leaf) name() string { return l.options.Namespace + "/" + l.options.Name }

// sameChain compares whole chains, because an intermediate can be renewed under a
// leaf that stays.
func sameChain(a, b *tls.Certificate) bool {
	if len(a.Certificate) != len(b.Certificate) {
		return false
	}
	for i := range a.Certificate {
		if !bytes.Equal(a.Certificate[i], b.Certificate[i]) {
			return false
		}
	}
	return true
}
