package certs

import (
	"context"
	"crypto/x509"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// read returns the state in the Secret. If there is no usable CA in it, read heals
// it first.
func (a *Authority) read(ctx context.Context) (*state, *corev1.Secret, error) {
	for attempt := range attempts {
		secret, err := a.options.Secrets.Get(ctx, a.options.Name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, nil, fmt.Errorf("reading the CA from Secret %s: %w", a.name(), err)
		}
		reason := "the Secret does not exist"
		if !missing {
			s, problem := a.parse(secret)
			if problem == "" {
				return s, secret, nil
			}
			reason = problem
		}
		if a.options.ReadOnly {
			return nil, nil, fmt.Errorf("no CA in Secret %s: %s: %w", a.name(), reason, errNotYet)
		}
		if attempt == 0 {
			// Every replica notices at the same moment.
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

// parse returns the state in a Secret, or the reason why it is not usable.
func (a *Authority) parse(secret *corev1.Secret) (s *state, problem string) {
	s, err := parseState(secret)
	if err != nil {
		return nil, err.Error()
	}
	if usable, reason := s.current.usable(a.options.Clock.Now()); !usable {
		return nil, reason
	}
	return s, ""
}

// heal returns a state for a Secret without a usable CA: the one that this replica
// knows, so that no call fails; else the next CA in the Secret; else a new CA. It
// rotates what this replica knew at once, because the user who changed the Secret
// may have read its key.
func (a *Authority) heal(secret *corev1.Secret) (Step, *state, error) {
	now := a.options.Clock.Now()
	fresh, err := NewCA(now, a.options.CALifetime)
	if err != nil {
		return "", nil, err
	}
	if secret != nil && requested(secret) == RotateEmergency {
		return Withdrawn, &state{current: fresh}, nil
	}
	if known, _ := a.known(); known != nil {
		if usable, _ := known.current.usable(now); usable {
			return Restored, known.withNext(fresh), nil
		}
	}
	if secret == nil {
		return Created, &state{current: fresh}, nil
	}
	// Clients keep trusting the old certificate until the other replicas, which
	// may know its key, have noticed.
	var previous []*x509.Certificate
	for _, cert := range parseCerts(secret.Data[CertKey]) {
		if cert.IsCA && now.Before(cert.NotAfter) && !now.Before(cert.NotBefore) {
			previous = append(previous, cert)
		}
	}
	if next, err := parseCA(secret.Data[NextCertKey], secret.Data[NextKeyKey]); err == nil {
		if usable, _ := next.usable(now); usable {
			return Promoted, &state{current: next, previous: previous, promoted: now}, nil
		}
	}
	return Created, &state{current: fresh, previous: previous, promoted: now}, nil
}

// write puts a state into the Secret.
func (a *Authority) write(ctx context.Context, s *state, secret *corev1.Secret, create bool, reason string) (*corev1.Secret, error) {
	if create {
		secret = a.newSecret(a.options.Name, corev1.SecretTypeOpaque)
	} else {
		secret = secret.DeepCopy()
	}
	if err := s.writeTo(secret, reason); err != nil {
		return nil, err
	}
	return a.put(ctx, secret, create)
}

func (a *Authority) newSecret(name string, typ corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: a.options.Namespace, Labels: a.options.Labels}, Type: typ,
	}
}

// put creates or updates a Secret. An update carries the resource version that was
// read, so it fails if another replica was faster.
func (a *Authority) put(ctx context.Context, secret *corev1.Secret, create bool) (written *corev1.Secret, err error) {
	switch {
	case secret.Type != "" && secret.Type != corev1.SecretTypeOpaque && secret.Type != corev1.SecretTypeTLS:
		// Others write it, too: the token controller puts a token into one of its type.
		return nil, fmt.Errorf("Secret %s/%s is of type %s, so somebody else's: delete it, or choose another name", a.options.Namespace, secret.Name, secret.Type)
	case create:
		written, err = a.options.Secrets.Create(ctx, secret, metav1.CreateOptions{})
	default:
		written, err = a.options.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("writing Secret %s/%s: %w", a.options.Namespace, secret.Name, err)
	}
	return written, nil
}
