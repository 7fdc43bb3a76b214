package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// provider is where credentials come from.
type provider interface {
	// keys returns those of the grant's credentials of which a run gets one. A lease that
	// claims a key has a name by it, so that the run has only one of them, or if they are
	// exclusive nobody else has. nil says that each lease is for a new credential.
	keys(ctx context.Context, namespace string, grant *v1alpha1.CredentialGrant) (keys []string, exclusive bool, err error)
	// life is how long a credential lasts by itself.
	life() time.Duration
	// issue returns the credential of a lease, and what revoke will need of it: nil if that is
	// nothing. An error that is not errUnknown says that there is no credential.
	issue(ctx context.Context, grant *v1alpha1.CredentialGrant, lease *v1alpha1.CredentialLease) (value string, handle []byte, err error)
	// revoke returns nil when nobody can use the credential any more. handle is nil if issue
	// returned none, or has not returned.
	revoke(ctx context.Context, lease *v1alpha1.CredentialLease, handle []byte) error
}

// errUnknown says that a provider cannot tell whether it has made a credential.
var errUnknown = errors.New("there may be a credential nobody was given")

// providerOf returns the provider of a grant.
func providerOf(grant *v1alpha1.CredentialGrant) v1alpha1.CredentialProvider {
	switch {
	case grant.TokenPool != nil:
		return v1alpha1.ProviderTokenPool
	case grant.GitHubApp != nil:
		return v1alpha1.ProviderGitHubApp
	}
	return v1alpha1.ProviderSecret
}

// maxValue bounds a credential: it must fit a header.
const maxValue = 8 << 10

// readKey reads a key of a Secret.
func readKey(ctx context.Context, live client.Reader, namespace string, from v1alpha1.SecretKey) (string, error) {
	secret := &corev1.Secret{}
	if err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: from.Name}, secret); err != nil {
		return "", fmt.Errorf("reading Secret %s/%s: %w", namespace, from.Name, err)
	}
	switch value, found := secret.Data[from.Key]; {
	case !found || len(value) == 0:
		return "", fmt.Errorf("Secret %s/%s has nothing under the key %q", namespace, from.Name, from.Key)
	default:
		return string(value), nil
	}
}

// secretProvider gives what is in a Secret. Nothing can revoke that: the proxy forgets it
// when the lease is over.
type secretProvider struct {
	live     client.Reader
	duration time.Duration
}

func (p *secretProvider) keys(_ context.Context, _ string, grant *v1alpha1.CredentialGrant) ([]string, bool, error) {
	return []string{grant.Secret.Name + "/" + grant.Secret.Key}, false, nil
}

func (p *secretProvider) life() time.Duration { return p.duration }

func (p *secretProvider) issue(ctx context.Context, grant *v1alpha1.CredentialGrant, lease *v1alpha1.CredentialLease) (string, []byte, error) {
	value, err := readKey(ctx, p.live, lease.Spec.Run.Namespace, *grant.Secret)
	return value, nil, err
}

func (p *secretProvider) revoke(context.Context, *v1alpha1.CredentialLease, []byte) error { return nil }
