package broker

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// issue gives a run a credential. The order is what makes it leak nothing: the lease is
// recorded, then audited, then the credential made, then what revokes it stored, and then
// it is answered, unless the lease was revoked meanwhile.
func (b *service) issue(ctx context.Context, who *caller, of *run, request protocol.IssueRequest) (*protocol.Issued, error) {
	if of.ended {
		return nil, refuse(http.StatusForbidden, protocol.CodeRunEnded, "%s has ended", of)
	}
	policy, grant, err := b.grantOf(ctx, of, request.Name)
	if err != nil {
		return nil, err
	}
	if inContainer := grant.Delivery.InContainer != nil; inContainer != (who.pod == nil) || inContainer && of.Kind == v1alpha1.LeaseOfWorkspace {
		return nil, refuse(http.StatusForbidden, protocol.CodeForbidden,
			"credential %s of BrokerPolicy %s: the controller gets those of runs that are delivered inContainer, and the proxy of a run or a seed those that are proxyInjected", grant.Name, policy)
	}
	lease, renewed, err := b.claim(ctx, of, who.pod, policy, grant)
	if err != nil {
		return nil, err
	}
	made, err := b.make(ctx, who, grant, lease)
	if err == nil {
		err = b.confirm(ctx, lease)
	}
	if err != nil {
		if !renewed { // else the caller has the credential already, and the lease is true
			b.abandon(lease, made)
		}
		return nil, err
	}
	issuedTotal.WithLabelValues(string(lease.Spec.Provider)).Inc()
	issued := answer(grant, lease, made.value)
	issued.Fresh = !renewed
	return issued, nil
}

// made is how far make came.
type made struct {
	value  string
	handle []byte
	// recorded says that there is an audit record, and tried that there may be a credential.
	recorded, tried bool
}

// grantOf returns what the policies of the run's namespace grant by this name.
func (b *service) grantOf(ctx context.Context, of *run, name string) (policy string, grant *v1alpha1.CredentialGrant, err error) {
	policies, to, err := b.policiesOf(ctx, b.live, of)
	if err != nil {
		return "", nil, b.unavailable("reading BrokerPolicies", err)
	}
	if len(policies) == 0 {
		return "", nil, refuse(http.StatusForbidden, protocol.CodePolicyMissing, "no BrokerPolicy in namespace %s applies to %s", of.Namespace, to)
	}
	for i := range policies {
		found := policies[i].Credential(name)
		switch {
		case found == nil:
		case grant != nil:
			return "", nil, refuse(http.StatusForbidden, protocol.CodeAmbiguous, "credential %s is granted by BrokerPolicies %s and %s: remove one of them", name, policy, policies[i].Name)
		default:
			policy, grant = policies[i].Name, found
		}
	}
	if grant == nil {
		return "", nil, refuse(http.StatusForbidden, protocol.CodeCredentialNotFound, "no BrokerPolicy in namespace %s that applies to %s grants credential %q", of.Namespace, to, name)
	}
	return policy, grant, nil
}

// policiesOf returns the policies that apply to a run, in the order of their names, and to what they apply.
func (b *service) policiesOf(ctx context.Context, from client.Reader, of *run) (apply []v1alpha1.BrokerPolicy, to string, err error) {
	var list v1alpha1.BrokerPolicyList
	if err := from.List(ctx, &list, client.InNamespace(of.Namespace)); err != nil {
		return nil, "", err
	}
	apply, to = of.policies(&list)
	return apply, to, nil
}

// make puts the lease on record, makes the credential, and stores what revokes it.
func (b *service) make(ctx context.Context, who *caller, grant *v1alpha1.CredentialGrant, lease *v1alpha1.CredentialLease) (m made, err error) {
	// A renewal has the ID of the first record, and so makes no second.
	if err := b.recorder.Record(ctx, leaseRecord(who, lease, "issued", "BrokerPolicy "+lease.Spec.Policy+" grants it")); err != nil {
		b.log.Error("not recorded, so not issued", zap.String("lease", lease.Name), zap.Error(err))
		return m, later(http.StatusServiceUnavailable, protocol.CodeAuditUnavailable, 5, "credential %s is only issued when that is recorded, and it cannot be", grant.Name)
	}
	m.recorded = true
	m.value, m.handle, err = b.providers[lease.Spec.Provider].issue(ctx, grant, lease)
	m.tried = err == nil || errors.Is(err, errUnknown)
	if err != nil {
		return m, b.providerFailed(grant, err)
	}
	m.value = strings.TrimRight(m.value, "\r\n") // a file of an editor ends with one
	if m.value == "" || len(m.value) > maxValue || strings.ContainsAny(m.value, "\r\n\x00") {
		return m, refuse(http.StatusUnprocessableEntity, protocol.CodeProviderFailed, "credential %s: its value is empty, longer than %d bytes, or of several lines: it fits no header", grant.Name, maxValue)
	}
	if m.handle == nil {
		return m, nil
	}
	if err := b.live.Create(ctx, b.handleOf(lease, m.handle)); err != nil {
		return m, b.unavailable("storing what revokes the credential", err)
	}
	return m, nil
}

// handleKey is the key of a handle in its Secret.
const handleKey = "handle"

// handleOf is the Secret of the broker's own that has what it takes to revoke a lease, and
// that goes with it.
func (b *service) handleOf(lease *v1alpha1.CredentialLease, handle []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.namespace, Name: lease.Name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(lease, v1alpha1.GroupVersion.WithKind("CredentialLease"))},
		},
		Data: map[string][]byte{handleKey: handle},
	}
}

// confirm refuses to answer with a lease that was revoked meanwhile, or whose run has ended:
// who revokes all leases of a run may have missed one that was about to begin.
func (b *service) confirm(ctx context.Context, lease *v1alpha1.CredentialLease) error {
	now := &v1alpha1.CredentialLease{}
	err := b.live.Get(ctx, client.ObjectKeyFromObject(lease), now)
	switch {
	case apierrors.IsNotFound(err) || err == nil && (now.UID != lease.UID || now.DeletionTimestamp != nil):
		return refuse(http.StatusForbidden, protocol.CodeRunEnded, "the lease was revoked while it was made")
	case err != nil:
		return b.unavailable("reading the lease again", err)
	}
	ended, err := b.runs.hasEnded(ctx, lease.Spec.Run)
	switch {
	case err != nil:
		return b.unavailable("reading the run again", err)
	case ended:
		return refuse(http.StatusForbidden, protocol.CodeRunEnded, "%s %s has ended", lease.Spec.Run.Kind, lease.Spec.Run.Name)
	}
	return nil
}

// abandonTimeout bounds what is done after an answer that failed.
const abandonTimeout = 10 * time.Second

// abandon revokes a credential that nobody was given. What it does not manage, the
// reconciler does: the lease is deleted, or at least there.
func (b *service) abandon(lease *v1alpha1.CredentialLease, m made) {
	ctx, cancel := context.WithTimeout(context.Background(), abandonTimeout)
	defer cancel()
	if m.handle != nil {
		// At once, since the API server may be what failed, and the handle in no store.
		_ = b.providers[lease.Spec.Provider].revoke(ctx, lease, m.handle) // end asks again
	}
	err := b.live.Delete(ctx, lease, client.Preconditions{UID: &lease.UID})
	if err == nil {
		err = b.live.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	}
	switch {
	case err != nil:
	case m.tried:
		err = b.end(ctx, lease, m.handle, true, "it was not delivered")
	case m.recorded:
		err = b.release(ctx, lease, actionFailed, "no credential was made")
	default:
		err = b.letGo(ctx, lease, actionFailed)
	}
	if client.IgnoreNotFound(err) != nil {
		b.log.Warn("a lease that was not delivered is still to be revoked", zap.String("lease", lease.Name), zap.Error(err))
	}
}

// answer is what the caller gets.
func answer(grant *v1alpha1.CredentialGrant, lease *v1alpha1.CredentialLease, value string) *protocol.Issued {
	issued := &protocol.Issued{Lease: lease.Name, ExpiresAt: lease.Spec.ExpiresAt.Time}
	inject := grant.Delivery.ProxyInjected
	if inject == nil {
		issued.Value = value
		return issued
	}
	if inject.BasicUser != "" {
		value = "Basic " + base64.StdEncoding.EncodeToString([]byte(inject.BasicUser+":"+value))
	}
	issued.Header, issued.Hosts = &protocol.Header{Name: inject.Header, Value: inject.Prefix + value}, inject.Hosts
	return issued
}

// leaseRecord is the record of what happened to a lease. It has names, and no values.
func leaseRecord(who *caller, lease *v1alpha1.CredentialLease, action, why string) extension.Record {
	spec := &lease.Spec
	record := extension.Record{
		ID: string(lease.UID) + "-" + action, Action: action,
		Object: corev1.ObjectReference{Kind: string(spec.Run.Kind), Namespace: spec.Run.Namespace, Name: spec.Run.Name, UID: spec.Run.UID},
		Reason: "credential " + spec.Credential + " of provider " + string(spec.Provider) + " on lease " + lease.Name + ": " + why,
	}
	if who != nil {
		record.User = who.user
	}
	if spec.Pod != nil {
		record.Pod = corev1.ObjectReference{Name: spec.Pod.Name, UID: spec.Pod.UID}
	}
	return record
}
