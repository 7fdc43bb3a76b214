package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"
)

// DefaultPropagationDelay is how long every API server has to learn of a new
// bundle. It gets them by a watch, which takes milliseconds when all is well.
const DefaultPropagationDelay = time.Minute

const (
	// checkInterval is how often an Authority looks, whatever it is told of by a
	// watch, so that no lost event matters. With what a repair takes it keeps
	// within ten seconds.
	checkInterval = 8 * time.Second
	// retryInterval is the pause after a failure.
	retryInterval = 2 * time.Second
	// spread is how far apart replicas that have the same idea at the same
	// moment act on it. The first of them does it, and the others see that it
	// is done.
	spread = 500 * time.Millisecond
	// attempts bounds how often a lost race is run again. Each loss means that
	// someone else wrote the Secret, after which there is usually nothing to do.
	attempts = 10
)

// Options are the options of [NewAuthority].
type Options struct {
	// Secrets is the client for the Secret's namespace. Required.
	Secrets corev1client.SecretInterface
	// Namespace and Name are those of the Secret. Required.
	Namespace, Name string
	// Labels are put on the Secrets when they are created.
	Labels map[string]string
	// Hosts are the DNS names and IP addresses that the leaf is for. Required.
	Hosts []string
	// LeafName is the name of a kubernetes.io/tls Secret that holds the leaf, for
	// servers that may not read the CA's key; see [Leaf]. Default: none, the leaf
	// is in memory only.
	LeafName string
	// ReadOnly says that someone else creates, repairs and rotates: then only the
	// right to get the Secret is needed, and a missing or malformed one is
	// waited for.
	ReadOnly bool
	// CALifetime and LeafLifetime default to DefaultCALifetime and
	// DefaultLeafLifetime. A leaf may live a third as long as the CA at most.
	CALifetime, LeafLifetime time.Duration
	// PropagationDelay is how long a next CA is trusted by every client before it
	// signs. Default: DefaultPropagationDelay.
	PropagationDelay time.Duration
	// Publish makes every client trust the bundle, and reports whether that
	// changed anything; it returns nil when it has read the bundle back. It must
	// read what is published before it calls bundle, and write on the condition
	// that nobody wrote in between: so a replica that was suspended cannot
	// publish what it knew before. Default: nobody is told.
	Publish func(ctx context.Context, bundle func(context.Context) ([]byte, error)) (changed bool, err error)
	// OnChange is told of each change, after it was made.
	OnChange func(Change)
	// Clock is the real one by default. It should agree with the clock of the
	// API servers, which are those who check the validity.
	Clock clock.WithTicker
	// Logger gets each change with its reason. Default: none.
	Logger *zap.Logger
}

// Step is what was done to certificates.
type Step string

// The steps, in the order of a rotation after the first three.
const (
	// Created: the Secret had no usable CA and nobody knew one; there is a new one.
	Created Step = "Created"
	// Restored: the Secret had no usable CA, and a replica wrote the one it knew.
	Restored Step = "Restored"
	// LeafIssued: a leaf was signed.
	LeafIssued Step = "LeafIssued"
	// NextWritten: the next CA is in the Secret.
	NextWritten Step = "NextWritten"
	// BundlePublished: what clients trust has changed.
	BundlePublished Step = "BundlePublished"
	// NextTrusted: every client was seen to trust the next CA.
	NextTrusted Step = "NextTrusted"
	// Promoted: the next CA signs.
	Promoted Step = "Promoted"
	// PreviousDropped: clients need not trust the previous CA any more.
	PreviousDropped Step = "PreviousDropped"
)

// Change is a step that was taken.
type Change struct {
	Step   Step
	Reason string
	// Secret is the name of the Secret that it is about.
	Secret string
}

// Authority is one replica's view of the shared CA: it makes sure that the
// Secret holds a usable one, rotates it, and keeps a leaf signed by it.
type Authority struct {
	options Options

	mu    sync.RWMutex
	state *state
	leaf  *tls.Certificate
}

// NewAuthority returns an authority that has nothing yet; call Ensure.
func NewAuthority(options Options) *Authority {
	if options.CALifetime == 0 {
		options.CALifetime = DefaultCALifetime
	}
	if options.LeafLifetime == 0 {
		options.LeafLifetime = DefaultLeafLifetime
	}
	if options.PropagationDelay == 0 {
		options.PropagationDelay = DefaultPropagationDelay
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &Authority{options: options}
}

// GetCertificate serves the leaf; it has the form of the field in tls.Config. A
// leaf that ended, because the machine was suspended or the API server was away
// for long, is replaced on the spot.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.RLock()
	leaf, s := a.leaf, a.state
	a.mu.RUnlock()
	if leaf == nil {
		return nil, errors.New("there is no serving certificate yet")
	}
	if now := a.options.Clock.Now(); a.options.LeafName == "" && !now.Before(leaf.Leaf.NotAfter) {
		if usable, _ := s.current.Usable(now); usable {
			return a.issue(s, "the leaf has expired")
		}
	}
	return leaf, nil
}

// Bundle returns the certificates, in PEM, that a client is to trust; nil
// before the first Ensure.
func (a *Authority) Bundle() []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.state == nil {
		return nil
	}
	return a.state.bundle()
}

// Run calls Check until ctx ends: every eight seconds, at the moment at which the
// next step is due, and when told by trigger, which may be nil. Its errors are
// logged: what cannot be done now may work the next time, and the leaf at hand
// still serves.
func (a *Authority) Run(ctx context.Context, trigger <-chan struct{}) {
	for wait := time.Duration(0); ; {
		timer := a.options.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-trigger:
			timer.Stop()
			// Every replica is told at the same moment.
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

// untilNext is how long nothing is due.
func (a *Authority) untilNext() time.Duration {
	a.mu.RLock()
	defer a.mu.RUnlock()
	now := a.options.Clock.Now()
	next := now.Add(checkInterval)
	if !a.options.ReadOnly {
		next = a.state.wake(next, a.options.PropagationDelay, a.options.LeafLifetime)
	}
	if due := renewal(a.leaf.Leaf); due.Before(next) {
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

// errNotYet is why a read-only authority waits.
var errNotYet = errors.New("waiting for the registrar to write it")

// Wait calls Ensure until it succeeds or fails for another reason than that the
// Secret of a read-only authority is not there yet.
func (a *Authority) Wait(ctx context.Context) error {
	return waitFor(ctx, a.options.Clock, a.options.Logger, "no CA yet", a.Ensure)
}

// waitFor tries until the error is another one than errNotYet, and says once
// that it waits.
func waitFor(ctx context.Context, clock clock.WithTicker, log *zap.Logger, message string, try func(context.Context) error) error {
	ticker := clock.NewTicker(time.Second)
	defer ticker.Stop()
	for said := false; ; said = true {
		err := try(ctx)
		if !errors.Is(err, errNotYet) {
			return err
		}
		if !said {
			log.Info(message, zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-ticker.C():
		}
	}
}

// Ensure makes sure that the Secret holds a usable CA, creating or repairing it
// where need be, and that there is a leaf signed by it.
func (a *Authority) Ensure(ctx context.Context) error {
	s, _, err := a.read(ctx)
	if err != nil {
		return err
	}
	return a.adopt(ctx, s)
}

// Check looks at the Secret, at what is published and at the leaf, and takes
// every step that is due. Any replica takes any step: each is a write that fails
// when someone else was faster, which is as good.
func (a *Authority) Check(ctx context.Context) error {
	for range attempts {
		s, secret, err := a.read(ctx)
		if err != nil {
			return err
		}
		published := false
		if a.options.Publish != nil {
			published, err = a.options.Publish(ctx, func(ctx context.Context) ([]byte, error) {
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
		}
		// First the bundle, then the leaf: API servers key their connections by
		// the bundle, and so make new ones when it changes.
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

// step takes the first step that is due.
func (a *Authority) step(ctx context.Context, s *state, secret *corev1.Secret) (took bool, err error) {
	now := a.options.Clock.Now()
	var step Step
	due, reason := s.publishedDue(now)
	after := s
	if due {
		step, after = NextTrusted, s.withPublished(now)
	} else if due, reason = s.promoteDue(now, a.options.PropagationDelay); due {
		step, after = Promoted, s.withPromotion(now)
	} else if due, reason = s.dropDue(now, a.options.LeafLifetime); due {
		step, after = PreviousDropped, s.withoutPrevious()
	} else if due, reason = s.nextDue(now); due {
		next, err := NewCA(now, a.options.CALifetime)
		if err != nil {
			return false, err
		}
		step, after = NextWritten, s.withNext(next)
	}
	if !due {
		return false, nil
	}
	if _, err := a.write(ctx, after, secret, false, reason); err != nil {
		if lost(err, false) {
			return true, nil
		}
		return false, err
	}
	a.note(step, reason)
	return true, nil
}

// lost reports whether a write failed because someone else was faster.
func lost(err error, create bool) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) && !create
}

// adopt takes what the Secret says for true, and renews the leaf where need be.
func (a *Authority) adopt(ctx context.Context, s *state) error {
	a.mu.Lock()
	a.state = s
	leaf := a.leaf
	a.mu.Unlock()
	expiry.WithLabelValues("ca", a.name()).Set(float64(s.current.NotAfter().Unix()))
	if a.options.LeafName != "" {
		return a.ensureLeafSecret(ctx, s)
	}
	var cert *x509.Certificate
	if leaf != nil {
		cert = leaf.Leaf
	}
	if due, reason := s.current.LeafDue(cert, a.options.Clock.Now()); due {
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
	expiry.WithLabelValues("leaf", a.name()).Set(float64(leaf.Leaf.NotAfter.Unix()))
}

// read returns the state that the Secret holds, and heals a Secret that holds
// none.
func (a *Authority) read(ctx context.Context) (*state, *corev1.Secret, error) {
	for attempt := range attempts {
		secret, err := a.options.Secrets.Get(ctx, a.options.Name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, nil, fmt.Errorf("reading the CA from Secret %s: %w", a.name(), err)
		}
		reason := "the Secret does not exist"
		if !missing {
			s, err := parseState(secret)
			if err != nil {
				reason = err.Error()
			} else if usable, why := s.current.Usable(a.options.Clock.Now()); !usable {
				reason = why
			} else {
				return s, secret, nil
			}
		}
		if a.options.ReadOnly {
			return nil, nil, fmt.Errorf("no CA in Secret %s: %s: %w", a.name(), reason, errNotYet)
		}
		if attempt == 0 {
			// Every replica sees the same at the same moment.
			if err := a.pause(ctx); err != nil {
				return nil, nil, err
			}
			continue
		}
		step, s, err := a.heal(secret)
		if err != nil {
			return nil, nil, err
		}
		written, err := a.write(ctx, s, secret, missing, reason)
		if err == nil {
			a.note(step, reason)
			return s, written, nil
		}
		if !lost(err, missing) {
			return nil, nil, err
		}
	}
	return nil, nil, fmt.Errorf("writing the CA to Secret %s: lost the race against other writers %d times", a.name(), attempts)
}

// heal finds a state for a Secret that holds none: the one that this replica
// knows, so that no call fails; or its next CA; or a new CA. Whoever changed the
// Secret may have read it, so what this replica knows is rotated at once.
func (a *Authority) heal(secret *corev1.Secret) (Step, *state, error) {
	now := a.options.Clock.Now()
	fresh, err := NewCA(now, a.options.CALifetime)
	if err != nil {
		return "", nil, err
	}
	a.mu.RLock()
	known := a.state
	a.mu.RUnlock()
	if known != nil {
		if usable, _ := known.current.Usable(now); usable {
			return Restored, known.withNext(fresh), nil
		}
	}
	if secret == nil {
		return Created, &state{current: fresh}, nil
	}
	// The old certificate stays trusted until other replicas, which may know its
	// key, have noticed.
	var previous []*x509.Certificate
	for _, cert := range parseCerts(secret.Data[CertKey]) {
		if cert.IsCA && now.Before(cert.NotAfter) && !now.Before(cert.NotBefore) {
			previous = append(previous, cert)
		}
	}
	if next, err := ParseCA(secret.Data[NextCertKey], secret.Data[NextKeyKey]); err == nil {
		if usable, _ := next.Usable(now); usable {
			return Promoted, &state{current: next, previous: previous, promoted: now}, nil
		}
	}
	return Created, &state{current: fresh, previous: previous, promoted: now}, nil
}

// write puts a state into the Secret. An update carries the resource version
// that was read, so that it fails when someone else was faster.
func (a *Authority) write(ctx context.Context, s *state, secret *corev1.Secret, create bool, reason string) (*corev1.Secret, error) {
	if create {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: a.options.Name, Namespace: a.options.Namespace, Labels: a.options.Labels},
			Type:       corev1.SecretTypeOpaque,
		}
	} else {
		secret = secret.DeepCopy()
	}
	if err := s.writeTo(secret, reason); err != nil {
		return nil, err
	}
	return a.put(ctx, secret, create)
}

func (a *Authority) put(ctx context.Context, secret *corev1.Secret, create bool) (written *corev1.Secret, err error) {
	if create {
		written, err = a.options.Secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		written, err = a.options.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("writing Secret %s/%s: %w", a.options.Namespace, secret.Name, err)
	}
	return written, nil
}

// note tells everybody of a change.
func (a *Authority) note(step Step, reason string, fields ...zap.Field) {
	// A reason may end in the text of an error, of which there is no end.
	label, _, _ := strings.Cut(reason, ":")
	changes.WithLabelValues(string(step), label).Inc()
	a.options.Logger.Info("certificates: "+string(step), append(fields, zap.String("secret", a.name()), zap.String("reason", reason))...)
	if a.options.OnChange != nil {
		a.options.OnChange(Change{Step: step, Reason: reason, Secret: a.options.Name})
	}
}

func (a *Authority) name() string { return a.options.Namespace + "/" + a.options.Name }
