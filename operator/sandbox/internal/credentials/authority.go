package credentials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

const (
	// RootName is the Secret with the root of the proxies, in the manager's own namespace. No caBundle has it: what a
	// proxy signs must count for nobody but its own run.
	RootName = "sandbox-proxy-root"
	// renewRoot is how long before its end the root is replaced. Runs keep the one that they began with.
	renewRoot = 365 * 24 * time.Hour
)

// EmptyRoot is the empty Secret into which the reconcilers write the root of the proxies: make it in the manager's own
// namespace. They have no right to make Secrets there, by which they would get the token of every ServiceAccount in it.
func EmptyRoot() *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Type: corev1.SecretTypeOpaque,
		ObjectMeta: metav1.ObjectMeta{Name: RootName, Labels: map[string]string{v1alpha1.LabelManagedBy: owned.ManagedBy}},
	}
}

// root returns the root of the proxies, and makes it if there is none, or it ends soon.
func (l *Lender) root(ctx context.Context) (*runca.Pair, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: l.Own, Name: RootName}
	if err := l.Live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("the root of the proxies: %w: make it: kubectl create secret generic %s --namespace %s", err, key.Name, key.Namespace)
	}
	now := l.Clock.Now()
	if len(secret.Data) > 0 {
		found := &runca.Pair{Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
		certificate, _, err := found.Parse()
		if err != nil {
			return nil, fmt.Errorf("the root of the proxies, Secret %s: %w: empty it, and another is made", key, err)
		}
		if certificate.NotAfter.After(now.Add(renewRoot)) {
			return found, nil
		}
	}
	made, err := runca.NewRoot(now)
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: made.Certificate, corev1.TLSPrivateKeyKey: made.Key}
	if err := l.Writer.Update(ctx, secret); err != nil { // another may have been first: the next attempt reads its root
		return nil, fmt.Errorf("storing the root of the proxies: %w", err)
	}
	return made, nil
}

// makeAuthority makes the Secret with the authority of the proxy of a run or a seed. Only the proxy mounts its key. Old
// clients want the root in the bundle, too.
func (l *Lender) makeAuthority(ctx context.Context, of metav1.ObjectMeta, brokerCA, upstream string) error {
	owner := of.OwnerReferences[0]
	root, err := l.root(ctx)
	if err != nil {
		return err
	}
	there, err := l.Read(ctx, client.ObjectKeyFromObject(owned.Secret(of, owned.SuffixProxy, nil)), owner)
	if err != nil {
		return err
	}
	if there != nil && l.isAuthority(there, root) && string(there.Data[owned.KeyBrokerCA]) == brokerCA && string(there.Data[owned.KeyUpstreamCA]) == upstream {
		return nil
	}
	pair, err := runca.NewRun(root, of.Namespace, owner.Name, l.Clock.Now())
	if err != nil {
		return err
	}
	data := map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key,
		owned.KeyCA: bytes.Join([][]byte{pair.Certificate, root.Certificate}, nil),
	}
	if brokerCA != "" {
		data[owned.KeyBrokerCA] = []byte(brokerCA)
	}
	if upstream != "" {
		data[owned.KeyUpstreamCA] = []byte(upstream)
	}
	return l.storeSecret(ctx, there, owned.Secret(of, owned.SuffixProxy, data))
}

// isAuthority reports whether a Secret has what an earlier attempt made, and the run can begin with it.
func (l *Lender) isAuthority(secret *corev1.Secret, root *runca.Pair) bool {
	pair := &runca.Pair{Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	certificate, _, err := pair.Parse()
	if err != nil {
		return false
	}
	above, _, err := root.Parse()
	return err == nil && certificate.CheckSignatureFrom(above) == nil && certificate.NotAfter.After(l.Clock.Now().Add(workload.MaxProxied)) &&
		bytes.Equal(secret.Data[owned.KeyCA], bytes.Join([][]byte{pair.Certificate, root.Certificate}, nil))
}

// Read reads a Secret of an owner, nil if there is none. One of somebody else is an error.
func (l *Lender) Read(ctx context.Context, key client.ObjectKey, owner metav1.OwnerReference) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := l.Live.Get(ctx, key, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	case !owned.Is(secret, owner):
		return nil, &owned.TakenError{Kind: "Secret", Name: key.String()}
	}
	l.Given.learn(owner.UID, secret)
	return secret, nil
}

// storeSecret makes a Secret, or writes over the one that there is. One that cannot be written over, though it says that
// it is its owner's, was made by somebody else.
func (l *Lender) storeSecret(ctx context.Context, there, want *corev1.Secret) error {
	owner := want.OwnerReferences[0]
	l.Given.learn(owner.UID, want)
	if there == nil {
		err := l.Writer.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			_, err = l.Read(ctx, client.ObjectKeyFromObject(want), owner)
			if err == nil {
				err = apierrors.NewConflict(corev1.Resource("secrets"), want.Name, fmt.Errorf("it was made a moment ago"))
			}
		}
		return err
	}
	want.ResourceVersion = there.ResourceVersion
	err := l.Writer.Update(ctx, want)
	if apierrors.IsInvalid(err) { // it is immutable, or of another type
		return &owned.TakenError{Kind: "Secret", Name: client.ObjectKeyFromObject(want).String()}
	}
	return err
}

// Discard deletes a Secret, if it is its owner's.
func (l *Lender) Discard(ctx context.Context, key client.ObjectKey, owner metav1.OwnerReference) error {
	there, err := l.Read(ctx, key, owner)
	if taken := (*owned.TakenError)(nil); there == nil && (err == nil || errors.As(err, &taken)) {
		return nil
	}
	if err == nil {
		err = l.Writer.Delete(ctx, there, client.Preconditions{UID: &there.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting a Secret of %s %s/%s: %w", owner.Kind, key.Namespace, owner.Name, err)
	}
	return nil
}
