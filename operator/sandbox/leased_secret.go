package sandbox

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// leasedSecret is what the container of a run, or of the seed of a Workspace, has on lease, in a Secret. Both are kept alike.
type leasedSecret struct {
	of    *protocol.Run
	owner metav1.OwnerReference
	// names are those of the credentials.
	names []string
	// keys are those of a credential in the Secret, the first that of its value, and fill returns what belongs to them.
	keys func(name string) []string
	fill func(name string, value []byte) map[string][]byte
	// secret is the Secret, with this data.
	secret func(data map[string][]byte) *corev1.Secret
	// leases are those in the status, and write writes that.
	leases *[]v1alpha1.SandboxCredential
	write  func(ctx context.Context) error
	// ask returns a client of the broker, if there is something to ask for.
	ask func(ctx context.Context) (*protocol.Client, error)
	// began says that there is a Job, whose container has what the status names.
	began bool
	// tampered records what somebody did to the Secret.
	tampered func(ctx context.Context, there *corev1.Secret, did string)
}

// lend brings the Secret into being. If all of it is there, as it was put there, and lasts, it asks nobody. The
// Secret is there before anything is leased, so that a name that is taken, or a quota, leases nothing, and the leases are
// in the status before the Secret has anything. Somebody who changed the Secret is on record.
func (r *runs) lend(ctx context.Context, l *leasedSecret) error {
	there, err := r.readOwned(ctx, client.ObjectKeyFromObject(l.secret(nil)), l.owner)
	if err != nil {
		return err
	}
	key, err := r.digestKey(ctx)
	if apierrors.IsNotFound(err) {
		return brokerObstacle(err)
	}
	if err != nil {
		return err
	}
	changed := l.changed(key, there)
	if there != nil && len(changed) == 0 && r.lasts(*l.leases, there, l.names) {
		r.given.doubts(l.owner.UID, false)
		return r.prune(ctx, l, there)
	}
	asker, err := l.ask(ctx)
	if err != nil {
		return err
	}
	if there, err = r.reserve(ctx, there, l.secret(nil)); err != nil {
		return err
	}
	if err := r.deliver(ctx, l, asker, key, there); err != nil {
		return err
	}
	if doubtful := r.given.doubts(l.owner.UID, false); len(changed) > 0 && !doubtful {
		l.tampered(ctx, there, fmt.Sprintf("changed what is in Secret %s, which is as it was again: %s", there.Name, strings.Join(changed, ", ")))
	}
	return nil
}

// reserve makes the Secret, without anything in it, unless it is there and can be written.
func (r *runs) reserve(ctx context.Context, there, empty *corev1.Secret) (*corev1.Secret, error) {
	if there != nil && there.Type == empty.Type && (there.Immutable == nil || !*there.Immutable) {
		return there, nil
	}
	if there != nil { // it says that it is its owner's, and ours is not like this
		if err := r.writer.Delete(ctx, there, client.Preconditions{UID: &there.UID}); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	return empty, r.storeSecret(ctx, nil, empty)
}

// deliver has the credentials issued, and puts them into the Secret. A lease goes back only if surely nobody has seen its
// value: it was made for this attempt, which has put it nowhere. If nobody knows whether the Secret has it, as after a
// timeout, it stays: the next attempt finds the value there, or takes the lease over, or replaces and revokes it.
func (r *runs) deliver(ctx context.Context, l *leasedSecret, asker *protocol.Client, key []byte, there *corev1.Secret) error {
	before := *l.leases
	data, leases, fresh, err := r.issue(ctx, l, asker, key)
	if err == nil {
		*l.leases = leases
		err = l.write(ctx)
	}
	stored := false
	if err == nil {
		err = r.storeSecret(ctx, there, l.secret(data))
		stored = err == nil || !isRefusal(err)
		if err != nil { // the status says more than the Secret may have
			r.given.doubts(l.owner.UID, true)
		}
	}
	switch {
	case err != nil && !stored && !apierrors.IsConflict(err): // else another attempt may have taken them over
		r.revokeSome(ctx, l.of, asker, fresh, true)
		*l.leases = before
	case err == nil && !l.began:
		r.revokeSome(ctx, l.of, asker, replaced(before, leases), false)
	}
	return err
}

// isRefusal reports whether the API server has answered that it did not write. After a timeout, or an answer that was lost,
// it may have.
func isRefusal(err error) bool {
	taken, status := (*owned.TakenError)(nil), apierrors.APIStatus(nil)
	if errors.As(err, &taken) {
		return true
	}
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}

// replaced returns the leases that are not among the new ones.
func replaced(before, after []v1alpha1.SandboxCredential) []v1alpha1.SandboxCredential {
	return slices.DeleteFunc(slices.Clone(before), func(had v1alpha1.SandboxCredential) bool {
		return slices.ContainsFunc(after, func(has v1alpha1.SandboxCredential) bool { return has.Lease == had.Lease })
	})
}

// issue asks for the credentials. fresh are the leases that were made for that, also if it fails.
func (r *runs) issue(ctx context.Context, l *leasedSecret, asker *protocol.Client, key []byte) (data map[string][]byte, leases, fresh []v1alpha1.SandboxCredential, err error) {
	data = map[string][]byte{}
	for _, name := range l.names {
		issued, err := asker.Issue(ctx, protocol.IssueRequest{Run: l.of, Name: name})
		if err != nil {
			return nil, nil, fresh, brokerObstacle(fmt.Errorf("credential %s: %w", name, err))
		}
		maps.Copy(data, l.fill(name, []byte(issued.Value)))
		lease := v1alpha1.SandboxCredential{
			Name: name, Lease: issued.Lease, ExpiresAt: metav1.NewTime(issued.ExpiresAt.Truncate(time.Second)), Digest: l.digest(key, name, data),
		}
		leases = append(leases, lease)
		if issued.Fresh {
			fresh = append(fresh, lease)
		}
	}
	return data, leases, fresh, nil
}

// revokeSome has the broker revoke some leases. undelivered says that nobody was given what they are for. What fails here
// the broker revokes when the run, or the seed, has ended.
func (r *runs) revokeSome(ctx context.Context, of *protocol.Run, asker *protocol.Client, leases []v1alpha1.SandboxCredential, undelivered bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokePerLease)
	defer cancel()
	for _, lease := range leases {
		request := protocol.RevokeRequest{Run: of, Lease: lease.Lease, Undelivered: undelivered}
		if _, err := asker.Revoke(ctx, request); err != nil {
			r.log.Warn("a lease that nothing uses is not revoked yet", zap.String("kind", of.Kind), zap.String("run", of.Namespace+"/"+of.Name), zap.String("lease", lease.Lease), zap.Error(err))
		}
	}
}

// digestKey is the key of digests: the root of the proxies is the one secret that the reconcilers have, and nobody else. When
// another root takes its place, once in years, what runs have at that time counts as changed.
func (r *runs) digestKey(ctx context.Context) ([]byte, error) {
	root, err := r.root(ctx)
	if err != nil {
		return nil, err
	}
	return root.Key, nil
}

// digest tells what the Secret has of a credential from what somebody puts into its place.
func (l *leasedSecret) digest(key []byte, name string, data map[string][]byte) string {
	parts := [][]byte{[]byte("credential"), []byte(l.owner.UID), []byte(name)}
	for _, key := range l.keys(name) {
		parts = append(parts, data[key])
	}
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		_ = binary.Write(mac, binary.BigEndian, uint64(len(part))) // a hash takes everything
		_, _ = mac.Write(part)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// changed returns the names of the credentials that are not in the Secret as they were put there. Before there is a Job, one
// that is not there at all was not put there yet.
func (l *leasedSecret) changed(key []byte, there *corev1.Secret) (names []string) {
	if there == nil {
		return nil
	}
	for _, c := range *l.leases {
		if !l.began && len(there.Data[c.Name]) == 0 {
			continue
		}
		if c.Digest != "" && !hmac.Equal([]byte(c.Digest), []byte(l.digest(key, c.Name, there.Data))) {
			names = append(names, c.Name)
		}
	}
	return names
}

// lasts reports whether a Secret has all credentials, and their leases have not ended.
func (r *runs) lasts(leases []v1alpha1.SandboxCredential, there *corev1.Secret, names []string) bool {
	until := r.options.Clock.Now().Add(leaseLeft)
	for _, name := range names {
		i := slices.IndexFunc(leases, func(c v1alpha1.SandboxCredential) bool { return c.Name == name })
		if i < 0 || !leases[i].ExpiresAt.After(until) || len(there.Data[name]) == 0 {
			return false
		}
	}
	return true
}

// prune takes out of a Secret what somebody has put into it. The container would not see it: it gets each credential
// by its name.
func (r *runs) prune(ctx context.Context, l *leasedSecret, there *corev1.Secret) error {
	var ours, extra []string
	for _, name := range l.names {
		ours = append(ours, l.keys(name)...)
	}
	for key := range maps.Keys(there.Data) {
		if !slices.Contains(ours, key) {
			extra = append(extra, key)
			delete(there.Data, key)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	slices.Sort(extra)
	if err := r.writer.Update(ctx, there); err != nil {
		return err
	}
	l.tampered(ctx, there, fmt.Sprintf("put keys into Secret %s, which are out of it again: %s", there.Name, strings.Join(extra, ", ")))
	return nil
}

// tamperedID is that of the record of what somebody did to a Secret of an owner.
func tamperedID(owner types.UID, there *corev1.Secret) string {
	return strings.ToLower(string(owner)) + "-credentials-tampered-" + there.ResourceVersion
}
