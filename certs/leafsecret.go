package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ensureLeafSecret makes sure that the leaf's Secret holds the bundle and a leaf
// that is not due. It runs after the bundle was published.
func (a *Authority) ensureLeafSecret(ctx context.Context, s *state) error {
	secret, err := a.options.Secrets.Get(ctx, a.options.LeafName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.renewLeafSecret(ctx, s, a.newSecret(a.options.LeafName, corev1.SecretTypeTLS), true, "the Secret does not exist")
	}
	if err != nil {
		return fmt.Errorf("reading the leaf from Secret %s/%s: %w", a.options.Namespace, a.options.LeafName, err)
	}
	leaf, reason := a.usableLeaf(s, secret)
	if leaf == nil {
		return a.renewLeafSecret(ctx, s, secret, false, reason)
	}
	if bundle := s.bundle(); !bytes.Equal(secret.Data[CertKey], bundle) {
		secret.Data[CertKey] = bundle
		if _, err := a.put(ctx, secret, false); err != nil && !lost(err, false) {
			return err
		}
	}
	a.serve(leaf)
	return nil
}

// usableLeaf returns the leaf of a Secret, or the reason to replace it.
func (a *Authority) usableLeaf(s *state, secret *corev1.Secret) (leaf *tls.Certificate, reason string) {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, "the leaf is malformed: " + err.Error()
	}
	if due, reason := s.current.leafDue(pair.Leaf, a.options.Clock.Now()); due {
		return nil, reason
	}
	for _, host := range a.options.Hosts {
		if pair.Leaf.VerifyHostname(host) != nil {
			return nil, "the leaf is not for every host"
		}
	}
	return &pair, ""
}

// renewLeafSecret writes a new leaf into the Secret.
func (a *Authority) renewLeafSecret(ctx context.Context, s *state, secret *corev1.Secret, create bool, reason string) error {
	leaf, err := s.current.IssueLeaf(a.options.Hosts, a.options.Clock.Now(), a.options.LeafLifetime)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		return fmt.Errorf("encoding the leaf's key: %w", err)
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, reasonAnnotation, reason)
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, NotBeforeAnnotation, leaf.Leaf.NotBefore.Format(time.RFC3339))
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, NotAfterAnnotation, leaf.Leaf.NotAfter.Format(time.RFC3339))
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[corev1.TLSCertKey] = encodeCerts([]*x509.Certificate{leaf.Leaf})
	secret.Data[corev1.TLSPrivateKeyKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	secret.Data[CertKey] = s.bundle()
	if _, err := a.put(ctx, secret, create); err != nil {
		if lost(err, create) {
			return a.ensureLeafSecret(ctx, s) // the other replica's leaf is just as good
		}
		return err
	}
	a.serve(leaf)
	a.note(LeafIssued, reason, zap.String("leafSecret", a.options.LeafName), zap.Time("notAfter", leaf.Leaf.NotAfter))
	return nil
}
