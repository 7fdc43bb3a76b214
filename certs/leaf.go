package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
)

// ensureLeafSecret makes sure that the leaf's Secret holds a leaf that is not
// due, and the bundle. It is written after the bundle was published.
func (a *Authority) ensureLeafSecret(ctx context.Context, s *state) error {
	secret, err := a.options.Secrets.Get(ctx, a.options.LeafName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("reading the leaf from Secret %s/%s: %w", a.options.Namespace, a.options.LeafName, err)
	}
	bundle := s.bundle()
	reason := "the Secret does not exist"
	if missing {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: a.options.LeafName, Namespace: a.options.Namespace, Labels: a.options.Labels},
			Type:       corev1.SecretTypeTLS,
		}
	} else {
		var leaf *tls.Certificate
		if leaf, reason = a.usableLeaf(s, secret); reason == "" {
			if bytes.Equal(secret.Data[CertKey], bundle) {
				a.serve(leaf)
				return nil
			}
			secret.Data[CertKey] = bundle
			if _, err := a.put(ctx, secret, false); err != nil && !lost(err, false) {
				return err
			}
			a.serve(leaf)
			return nil
		}
	}
	leaf, err := s.current.IssueLeaf(a.options.Hosts, a.options.Clock.Now(), a.options.LeafLifetime)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		return fmt.Errorf("encoding the leaf's key: %w", err)
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, ReasonAnnotation, reason)
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, NotBeforeAnnotation, leaf.Leaf.NotBefore.Format(time.RFC3339))
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, NotAfterAnnotation, leaf.Leaf.NotAfter.Format(time.RFC3339))
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey] = encodeCerts([]*x509.Certificate{leaf.Leaf})
	secret.Data[corev1.TLSPrivateKeyKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	secret.Data[CertKey] = bundle
	if _, err := a.put(ctx, secret, missing); err != nil {
		if lost(err, missing) {
			return a.ensureLeafSecret(ctx, s) // the other one's leaf is as good
		}
		return err
	}
	a.serve(leaf)
	a.note(LeafIssued, reason, zap.String("leafSecret", a.options.LeafName), zap.Time("notAfter", leaf.Leaf.NotAfter))
	return nil
}

// usableLeaf returns the leaf of a Secret, or why it is to be replaced.
func (a *Authority) usableLeaf(s *state, secret *corev1.Secret) (leaf *tls.Certificate, reason string) {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, "the leaf is malformed: " + err.Error()
	}
	if due, reason := s.current.LeafDue(pair.Leaf, a.options.Clock.Now()); due {
		return nil, reason
	}
	for _, host := range a.options.Hosts {
		if pair.Leaf.VerifyHostname(host) != nil {
			return nil, "the leaf is not for every host"
		}
	}
	return &pair, ""
}

// LeafOptions are the options of [NewLeaf].
type LeafOptions struct {
	// Secrets is the client for the Secret's namespace; the right to get the one
	// Secret is enough. Required.
	Secrets corev1client.SecretInterface
	// Namespace and Name are those of the Secret. Required.
	Namespace, Name string
	// Clock is the real one by default.
	Clock clock.WithTicker
	// Logger gets each new leaf, and each failure to read one. Default: none.
	Logger *zap.Logger
}

// Leaf serves a leaf from a kubernetes.io/tls Secret that someone else writes: an
// Authority with LeafName, or cert-manager. It never sees the CA's key.
type Leaf struct {
	options LeafOptions

	mu     sync.RWMutex
	leaf   *tls.Certificate
	bundle []byte
}

// NewLeaf returns a Leaf that has nothing yet; call Wait.
func NewLeaf(options LeafOptions) *Leaf {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &Leaf{options: options}
}

// GetCertificate serves the leaf; it has the form of the field in tls.Config.
func (l *Leaf) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.leaf == nil {
		return nil, errors.New("there is no serving certificate yet")
	}
	return l.leaf, nil
}

// Bundle returns ca.crt of the Secret: the certificates, in PEM, that clients
// trust; nil before the first Check.
func (l *Leaf) Bundle() []byte {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.bundle
}

// Wait calls Check until the Secret is there.
func (l *Leaf) Wait(ctx context.Context) error {
	return waitFor(ctx, l.options.Clock, l.options.Logger, "no leaf yet", l.Check)
}

// Run calls Check every eight seconds, and when told by trigger, until ctx ends.
// A failure is logged; the leaf at hand still serves.
func (l *Leaf) Run(ctx context.Context, trigger <-chan struct{}) {
	ticker := l.options.Clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-trigger:
		case <-ticker.C():
		}
		if err := l.Check(ctx); err != nil && ctx.Err() == nil {
			l.options.Logger.Error("certificate check failed", zap.Error(err))
		}
	}
}

// Check reads the Secret.
func (l *Leaf) Check(ctx context.Context) error {
	name := l.options.Namespace + "/" + l.options.Name
	secret, err := l.options.Secrets.Get(ctx, l.options.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no leaf in Secret %s: %w", name, errNotYet)
	}
	if err != nil {
		return fmt.Errorf("reading the leaf from Secret %s: %w", name, err)
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("no leaf in Secret %s: %w: %w", name, err, errNotYet)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaf == nil || !sameChain(l.leaf, &pair) {
		l.options.Logger.Info("leaf certificate read", zap.String("secret", name), zap.Time("notAfter", pair.Leaf.NotAfter))
		expiry.WithLabelValues("leaf", name).Set(float64(pair.Leaf.NotAfter.Unix()))
	}
	l.leaf, l.bundle = &pair, secret.Data[CertKey]
	return nil
}

// sameChain compares whole chains: an intermediate can be renewed under a leaf
// that stays.
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
