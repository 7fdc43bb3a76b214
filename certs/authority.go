package certs

import (
	"bytes"
	"context"
	"crypto/tls"
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

// The keys of the Secret.
const (
	CertKey = "ca.crt"
	KeyKey  = "ca.key"
)

// ReasonAnnotation on the Secret says why the CA was last written.
const ReasonAnnotation = "admitkit.dev/reason"

// checkInterval is how often an Authority looks whether the Secret still holds
// its CA, and whether the leaf is due. It is level-triggered and uses no watch,
// so there is no event to lose.
const checkInterval = 10 * time.Second

// Options are the options of [NewAuthority].
type Options struct {
	// Secrets is the client for the Secret's namespace. Required.
	Secrets corev1client.SecretInterface
	// Namespace and Name are those of the Secret. Required.
	Namespace, Name string
	// Labels are put on the Secret when it is created.
	Labels map[string]string
	// Hosts are the DNS names and IP addresses that the leaf is for. Required.
	Hosts []string
	// ReadOnly says that someone else creates and repairs the Secret: then only
	// the right to get it is needed, and a missing or malformed one is waited
	// for.
	ReadOnly bool
	// CALifetime and LeafLifetime default to DefaultCALifetime and
	// DefaultLeafLifetime.
	CALifetime, LeafLifetime time.Duration
	// Clock is the real one by default.
	Clock clock.WithTicker
	// Logger gets each change with its reason. Default: none.
	Logger *zap.Logger
	// OnBundle is called after the CA bundle changed, from Run.
	OnBundle func(ctx context.Context) error
}

// Authority is one replica's view of the shared CA: it makes sure that the
// Secret holds a usable one, and keeps a leaf signed by it.
type Authority struct {
	options Options

	mu   sync.RWMutex
	ca   *CA
	leaf *tls.Certificate
}

// NewAuthority returns an authority that has nothing yet; call Ensure.
func NewAuthority(options Options) *Authority {
	if options.CALifetime == 0 {
		options.CALifetime = DefaultCALifetime
	}
	if options.LeafLifetime == 0 {
		options.LeafLifetime = DefaultLeafLifetime
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &Authority{options: options}
}

// GetCertificate serves the leaf; it has the form of the field in tls.Config.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.leaf == nil {
		return nil, errors.New("there is no serving certificate yet")
	}
	return a.leaf, nil
}

// Bundle returns the certificates, in PEM, that a client is to trust; nil
// before the first Ensure.
func (a *Authority) Bundle() []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.ca == nil {
		return nil
	}
	return a.ca.Bundle()
}

// Run calls Ensure every ten seconds until ctx ends. Its errors are logged: what
// cannot be done now may work the next time, and the leaf at hand still serves.
func (a *Authority) Run(ctx context.Context) {
	ticker := a.options.Clock.NewTicker(checkInterval)
	defer ticker.Stop()
	published := a.Bundle()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if err := a.Ensure(ctx); err != nil && ctx.Err() == nil {
			a.options.Logger.Error("certificate check failed", zap.Error(err))
			continue
		}
		if bundle := a.Bundle(); a.options.OnBundle != nil && !bytes.Equal(bundle, published) {
			if err := a.options.OnBundle(ctx); err != nil {
				a.options.Logger.Error("CA bundle not published", zap.Error(err))
				continue
			}
			published = bundle
		}
	}
}

// errNotYet is why a read-only authority waits.
var errNotYet = errors.New("waiting for the registrar to write it")

// Wait calls Ensure until it succeeds or fails for another reason than that the
// Secret of a read-only authority is not there yet.
func (a *Authority) Wait(ctx context.Context) error {
	ticker := a.options.Clock.NewTicker(time.Second)
	defer ticker.Stop()
	for said := false; ; said = true {
		err := a.Ensure(ctx)
		if !errors.Is(err, errNotYet) {
			return err
		}
		if !said {
			a.options.Logger.Info("no CA yet", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-ticker.C():
		}
	}
}

// Ensure makes sure that the Secret holds a usable CA, creating or repairing it
// where need be, and that the leaf is signed by it and not due.
func (a *Authority) Ensure(ctx context.Context) error {
	ca, err := a.ensureCA(ctx)
	if err != nil {
		return err
	}
	a.mu.RLock()
	leaf := a.leaf
	a.mu.RUnlock()
	now := a.options.Clock.Now()
	reason := "there is no leaf yet"
	if leaf != nil {
		due := false
		if due, reason = ca.LeafDue(leaf.Leaf, now); !due {
			return nil
		}
	}
	leaf, err = ca.IssueLeaf(a.options.Hosts, now, a.options.LeafLifetime)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.ca, a.leaf = ca, leaf
	a.mu.Unlock()
	a.options.Logger.Info("leaf certificate issued", zap.String("reason", reason), zap.Strings("hosts", a.options.Hosts),
		zap.Time("notAfter", leaf.Leaf.NotAfter))
	return nil
}

// attempts bounds how often a lost race is run again. Each loss means that
// someone else wrote the Secret, after which there is usually nothing to do.
const attempts = 10

func (a *Authority) ensureCA(ctx context.Context) (*CA, error) {
	name := a.options.Namespace + "/" + a.options.Name
	for range attempts {
		secret, err := a.options.Secrets.Get(ctx, a.options.Name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, fmt.Errorf("reading the CA from Secret %s: %w", name, err)
		}
		reason := "the Secret does not exist"
		if !missing {
			var ca *CA
			if ca, reason = a.fromSecret(secret); ca != nil {
				return ca, nil
			}
		}
		if a.options.ReadOnly {
			return nil, fmt.Errorf("no CA in Secret %s: %s: %w", name, reason, errNotYet)
		}
		ca, err := a.write(ctx, secret, missing, reason)
		switch {
		case err == nil:
			a.options.Logger.Info("CA written", zap.String("secret", name), zap.String("reason", reason), zap.Time("notAfter", ca.NotAfter()))
			return ca, nil
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err) && !missing:
			continue
		default:
			return nil, fmt.Errorf("writing the CA to Secret %s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("writing the CA to Secret %s: lost the race against other writers %d times", name, attempts)
}

// fromSecret returns the CA of a Secret, or why it holds none that is usable.
func (a *Authority) fromSecret(secret *corev1.Secret) (ca *CA, reason string) {
	ca, err := ParseCA(secret.Data[CertKey], secret.Data[KeyKey])
	if err != nil {
		return nil, err.Error()
	}
	if usable, reason := ca.Usable(a.options.Clock.Now()); !usable {
		return nil, reason
	}
	return ca, ""
}

// write makes a new CA and puts it into the Secret; other keys of the Secret
// are kept. An update carries the resource version that was read, so that it
// fails when someone else was faster.
func (a *Authority) write(ctx context.Context, secret *corev1.Secret, create bool, reason string) (*CA, error) {
	ca, err := NewCA(a.options.Clock.Now(), a.options.CALifetime)
	if err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	if create {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: a.options.Name, Namespace: a.options.Namespace, Labels: a.options.Labels},
			Type:       corev1.SecretTypeOpaque,
		}
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, ReasonAnnotation, reason)
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[CertKey], secret.Data[KeyKey] = ca.Bundle(), key
	if create {
		_, err = a.options.Secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = a.options.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	return ca, err
}
