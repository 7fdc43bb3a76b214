package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// retryInterval is the pause after a failed check.
	retryInterval = 2 * time.Second
	// spread is how far apart replicas act that decide the same thing at the same
	// moment. The first one acts, and the others find it done.
	spread = 500 * time.Millisecond
	// attempts limits how often a lost race is run again. Each loss means that
	// another replica wrote the Secret, and usually nothing is left to do.
	attempts = 10
)

// Authority is one replica's view of the shared CA. It makes sure that the Secret
// holds a usable CA, rotates it, and keeps a leaf signed by it.
type Authority struct {
	options Options

	mu    sync.RWMutex
	state *state
	leaf  *tls.Certificate
}

// NewAuthority returns an authority that holds nothing until Wait or Check
// is called.
func NewAuthority(options Options) *Authority {
	options.setDefaults()
	return &Authority{options: options}
}

// GetCertificate serves the leaf. It replaces a leaf on the spot that expired
// because the machine was suspended or the API server was unreachable for long.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s, leaf := a.known()
	if leaf == nil {
		return nil, errNoCertificate
	}
	if now := a.options.Clock.Now(); a.options.LeafName == "" && !now.Before(leaf.Leaf.NotAfter) {
		if usable, _ := s.current.usable(now); usable {
			return a.issue(s, "the leaf has expired")
		}
	}
	return leaf, nil
}

// ForHosts serves leaves that are signed for these hosts, in memory.
func (a *Authority) ForHosts(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	var mu sync.Mutex
	var leaf *tls.Certificate
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		s, _ := a.known()
		if s == nil {
			return nil, errNoCertificate
		}
		mu.Lock()
		defer mu.Unlock()
		now := a.options.Clock.Now()
		usable, _ := s.current.usable(now)
		if due, reason := s.current.leafDue(certOf(leaf), now); due && (usable || leaf == nil) {
			signed, err := s.current.IssueLeaf(hosts, now, a.options.LeafLifetime)
			if err != nil {
				return nil, err
			}
			leaf = signed
			a.note(LeafIssued, reason, zap.Strings("hosts", hosts), zap.Time("notAfter", leaf.Leaf.NotAfter))
		}
		return leaf, nil
	}, nil
}

func (a *Authority) known() (*state, *tls.Certificate) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.state, a.leaf
}

func certOf(leaf *tls.Certificate) *x509.Certificate {
	if leaf == nil {
		return nil
	}
	return leaf.Leaf
}

// Bundle returns the certificates, in PEM, that a client should trust. It fails
// before the first certificate.
func (a *Authority) Bundle() ([]byte, error) {
	s, _ := a.known()
	if s == nil {
		return nil, errNoCertificate
	}
	return s.bundle(), nil
}

// SecretName returns the name of the CA's Secret.
func (a *Authority) SecretName() string { return a.options.Name }

// Wait reads the CA until it succeeds. A read-only authority waits for another
// process to write the Secret; every other error ends the wait.
func (a *Authority) Wait(ctx context.Context) error {
	return waitFor(ctx, a.options.Clock, a.options.Logger, "no CA yet", a.ensure)
}

// ensure makes sure that the Secret holds a usable CA and that there is a leaf
// signed by it. It creates or repairs the Secret if necessary.
func (a *Authority) ensure(ctx context.Context) error {
	s, _, err := a.read(ctx)
	if err != nil {
		return err
	}
	return a.adopt(ctx, s)
}

// Run calls Check until ctx ends: every eight seconds, when the next step is due,
// and on each trigger. It logs errors: what fails now may work the next time, and
// the leaf at hand keeps serving.
func (a *Authority) Run(ctx context.Context, trigger <-chan struct{}) {
	for wait := time.Duration(0); ; {
		timer := a.options.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-trigger:
			timer.Stop()
			// Every replica gets the trigger at the same moment.
			if a.pause(ctx) != nil {
				return
			}
		case <-timer.C():
		}
		wait = retryInterval
		if err := a.Check(ctx); err == nil {
			wait = a.untilNext()
		} else if ctx.Err() == nil {
			a.options.Logger.Error("certificate check failed", zap.Error(err))
		}
	}
}

// untilNext returns the time until the next check.
func (a *Authority) untilNext() time.Duration {
	s, leaf := a.known()
	now := a.options.Clock.Now()
	next := now.Add(checkInterval)
	if !a.options.ReadOnly {
		next = s.wake(next, a.options.PropagationDelay, a.options.LeafLifetime)
	}
	if due := renewal(leaf.Leaf); due.Before(next) {
		next = due
	}
	return max(next.Sub(now), 0) + rand.N(spread) //nolint:gosec // no secret
}

func (a *Authority) pause(ctx context.Context) error {
	timer := a.options.Clock.NewTimer(rand.N(spread)) //nolint:gosec // no secret
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

// Check looks at the Secret, at what is published and at the leaf, and takes every
// step that is due. Any replica may take any step: each is a write that fails if
// another replica was faster, which is just as good.
func (a *Authority) Check(ctx context.Context) error {
	for range attempts {
		s, secret, err := a.read(ctx)
		if err != nil {
			return err
		}
		s, secret, published, err := a.publish(ctx, s, secret)
		// The bundle comes first, then the leaf: API servers key their connections
		// by the bundle and so open new ones when it changes.
		if err := errors.Join(err, a.adopt(ctx, s)); err != nil || a.options.ReadOnly {
			return err
		}
		if published {
			continue // and read it back
		}
		if took, err := a.step(ctx, s, secret); err != nil || !took {
			return err
		}
	}
	return nil
}

// publish makes clients trust the bundle. It returns the state that it published,
// which may be newer than s.
func (a *Authority) publish(ctx context.Context, s *state, secret *corev1.Secret) (*state, *corev1.Secret, bool, error) {
	if a.options.Publish == nil {
		return s, secret, false, nil
	}
	published, err := a.options.Publish(ctx, func(ctx context.Context) ([]byte, error) {
		fresh, freshSecret, err := a.read(ctx)
		if err != nil {
			return nil, err
		}
		s, secret = fresh, freshSecret
		return s.bundle(), nil
	})
	if published && err == nil {
		a.note(BundlePublished, "clients were not trusting the bundle")
	}
	return s, secret, published, err
}

// step takes the first step that is due.
func (a *Authority) step(ctx context.Context, s *state, secret *corev1.Secret) (took bool, err error) {
	step, after, reason, err := a.due(s)
	if err != nil || after == nil {
		return false, err
	}
	if _, err := a.write(ctx, after, secret, false, reason); err != nil {
		if lost(err, false) {
			return true, nil
		}
		return false, err
	}
	if step != "" {
		a.note(step, reason)
	}
	return true, nil
}

// due decides which step is due. It returns the state after it, nil if there is none, and no
// step if there is nothing to report.
func (a *Authority) due(s *state) (step Step, after *state, reason string, err error) {
	now, leafLifetime := a.options.Clock.Now(), a.options.LeafLifetime
	if s.rotate == RotateEmergency {
		fresh, err := NewCA(now, a.options.CALifetime)
		return Withdrawn, &state{current: fresh}, "the annotation " + RotateAnnotation + "=" + RotateEmergency + " requests it", err
	}
	if due, reason := s.publishedDue(now); due {
		return NextTrusted, s.withPublished(now), reason, nil
	}
	if due, reason := s.promoteDue(now, a.options.PropagationDelay); due {
		return Promoted, s.withPromotion(now), reason, nil
	}
	if due, reason := s.dropDue(now, leafLifetime); due {
		return PreviousDropped, s.withoutPrevious(), reason, nil
	}
	if due, reason := s.nextDue(now); due {
		next, err := NewCA(now, a.options.CALifetime)
		return NextWritten, s.withNext(next), reason, err
	}
	step, message := s.waits(leafLifetime)
	switch message {
	case s.said:
		return "", nil, "", nil
	case "":
		return "", s.withSaid(""), "the request to rotate is gone", nil
	}
	return step, s.withSaid(message), message, nil
}

// lost reports whether a write failed because another replica was faster.
func lost(err error, create bool) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) && !create
}

// adopt makes s the state that this replica acts on, and renews the leaf if
// necessary.
func (a *Authority) adopt(ctx context.Context, s *state) error {
	a.mu.Lock()
	a.state = s
	leaf := a.leaf
	a.mu.Unlock()
	setValidity("ca", a.name(), s.current.cert)
	if a.options.LeafName != "" {
		return a.ensureLeafSecret(ctx, s)
	}
	if due, reason := s.current.leafDue(certOf(leaf), a.options.Clock.Now()); due {
		_, err := a.issue(s, reason)
		return err
	}
	return nil
}

// issue signs a leaf and serves it.
func (a *Authority) issue(s *state, reason string) (*tls.Certificate, error) {
	leaf, err := s.current.IssueLeaf(a.options.Hosts, a.options.Clock.Now(), a.options.LeafLifetime)
	if err != nil {
		return nil, err
	}
	a.serve(leaf)
	a.note(LeafIssued, reason, zap.Strings("hosts", a.options.Hosts), zap.Time("notAfter", leaf.Leaf.NotAfter))
	return leaf, nil
}

func (a *Authority) serve(leaf *tls.Certificate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaf = leaf
	setValidity("leaf", a.name(), leaf.Leaf)
}

// note reports a change in the metrics, in the log and to OnChange.
func (a *Authority) note(step Step, reason string, fields ...zap.Field) {
	// A reason may end in the text of an error, which would make a label of
	// unlimited values.
	label, _, _ := strings.Cut(reason, ":")
	changes.WithLabelValues(string(step), label).Inc()
	a.options.Logger.Info("certificates: "+string(step), append(fields, zap.String("secret", a.name()), zap.String("reason", reason))...)
	if a.options.OnChange != nil {
		a.options.OnChange(Change{Step: step, Reason: reason, Secret: a.options.Name})
	}
}

func (a *Authority) name() string { return a.options.Namespace + "/" + a.options.Name }
