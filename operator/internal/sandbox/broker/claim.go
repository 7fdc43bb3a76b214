package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// labelRun is the label of leases by which those of a run are found. Its value is
// [runKey].
const labelRun = "admitkit.dev/lease-run"

// maxLeases is how many leases a run can have at a time.
const maxLeases = 64

func runKey(kind v1alpha1.LeaseKind, namespace, name string) string {
	if kind == v1alpha1.LeaseOfRun { // as before there were others
		return digest(namespace, name)
	}
	return digest(string(kind), namespace, name)
}

// digest is a name for several texts, none of which can have a NUL.
func digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:20])
}

// claim records a lease, before there is a credential, or renews the one that the run has.
// The names of leases make a claim atomic: of two brokers that claim the same key, the API
// server lets one create it.
func (b *service) claim(ctx context.Context, of *run, pod *v1alpha1.LeasePod, policy string, grant *v1alpha1.CredentialGrant) (claimed *v1alpha1.CredentialLease, renewed bool, err error) {
	from := providerOf(grant)
	keys, exclusive, err := b.providers[from].keys(ctx, of.Namespace, grant)
	if err != nil {
		return nil, false, b.providerFailed(grant, err)
	}
	held, err := b.leasesOf(ctx, of.Kind, of.Namespace, of.Name)
	if err != nil {
		return nil, false, b.unavailable("reading the leases of the run", err)
	}
	lease := &v1alpha1.CredentialLease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.namespace, Labels: map[string]string{labelRun: runKey(of.Kind, of.Namespace, of.Name)}, Finalizers: []string{v1alpha1.FinalizerLease},
		},
		Spec: v1alpha1.CredentialLeaseSpec{
			Run: of.LeaseRun, Pod: pod, Policy: policy, Credential: grant.Name, Provider: from,
			ExpiresAt: metav1.NewMicroTime(b.clock.Now().Add(b.providers[from].life())),
		},
	}
	if keys == nil {
		lease.GenerateName = strings.ToLower(string(from)) + "-"
		return lease, false, b.create(ctx, lease, len(held))
	}
	for _, key := range keys {
		for i := range held {
			if had := &held[i]; had.Spec.Run == of.LeaseRun && had.Spec.Key == key && had.Spec.Credential == grant.Name && had.Spec.Policy == policy && had.Spec.Provider == from {
				err := b.renew(ctx, had, lease)
				return had, true, err
			}
		}
	}
	for _, key := range keys {
		owner := []string{string(from), of.Namespace, key}
		if !exclusive {
			owner = append(owner, string(of.UID), policy, grant.Name)
		}
		lease.Name, lease.Spec.Key = strings.ToLower(string(from))+"-"+digest(owner...), key
		if err := b.create(ctx, lease, len(held)); !apierrors.IsAlreadyExists(err) {
			return lease, false, err
		}
	}
	if !exclusive {
		return nil, false, later(http.StatusServiceUnavailable, protocol.CodeUnavailable, 1, "credential %s is being leased by another call of this run", grant.Name)
	}
	return nil, false, later(http.StatusServiceUnavailable, protocol.CodePoolExhausted, 10, "credential %s: each of its %d tokens is with a run", grant.Name, len(keys))
}

// create makes the record. The error is a refusal, or AlreadyExists.
func (b *service) create(ctx context.Context, lease *v1alpha1.CredentialLease, held int) error {
	if held >= maxLeases {
		return later(http.StatusTooManyRequests, protocol.CodeTooManyLeases, 60, "the run has %d leases, and can have no more", held)
	}
	err := b.live.Create(ctx, lease)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return err
	}
	return b.unavailable("recording the lease", err)
}

// renew makes a lease last as long as a new one would.
func (b *service) renew(ctx context.Context, had, fresh *v1alpha1.CredentialLease) error {
	if had.DeletionTimestamp != nil {
		return later(http.StatusServiceUnavailable, protocol.CodeUnavailable, 1, "credential %s: the lease before is being revoked", had.Spec.Credential)
	}
	had.Spec.ExpiresAt, had.Spec.Pod = fresh.Spec.ExpiresAt, fresh.Spec.Pod
	if err := b.live.Update(ctx, had); err != nil { // by its resourceVersion: not if it was deleted meanwhile
		return b.unavailable("renewing the lease", err)
	}
	return nil
}

// leasesOf returns the leases of the runs that have or had this name.
func (b *service) leasesOf(ctx context.Context, kind v1alpha1.LeaseKind, namespace, name string) ([]v1alpha1.CredentialLease, error) {
	var list v1alpha1.CredentialLeaseList
	if err := b.live.List(ctx, &list, client.InNamespace(b.namespace), client.MatchingLabels{labelRun: runKey(kind, namespace, name)}); err != nil {
		return nil, fmt.Errorf("listing CredentialLeases of %s %s/%s: %w", kind, namespace, name, err)
	}
	return list.Items, nil
}
