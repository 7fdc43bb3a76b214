package credentials

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

// leaseLeft is how much of a lease must be left for a container to begin with it.
const leaseLeft = 30 * time.Second

// Loan is what the container of a run has on lease, in a Secret.
type Loan struct {
	Of    *protocol.Run
	Owner metav1.OwnerReference
	// Names are those of the credentials.
	Names []string
	// Secret is the Secret, with this data.
	Secret func(data map[string][]byte) *corev1.Secret
	// Leases are those in the status, and write writes that.
	Leases *[]v1alpha1.SandboxCredential
	Write  func(ctx context.Context) error
	// Ask returns a client of the broker, if there is something to ask for.
	Ask func(ctx context.Context) (*protocol.Client, error)
	// Began says that there is a Job, whose container has what the status names.
	Began bool
	// Tampered records what somebody did to the Secret, by the ID of the record.
	Tampered func(ctx context.Context, id, did string)
}

// Lend brings the Secret into being. If all of it is there, as it was put there, and lasts, it asks nobody. The
// Secret is there before anything is leased, so that a name that is taken, or a quota, leases nothing, and the leases are
// in the status before the Secret has anything. Somebody who changed the Secret is on record.
func (l *Lender) Lend(ctx context.Context, loan *Loan) error {
	there, err := l.Read(ctx, client.ObjectKeyFromObject(loan.Secret(nil)), loan.Owner)
	if err != nil {
		return err
	}
	key, err := l.digestKey(ctx)
	if apierrors.IsNotFound(err) {
		return Obstacle(err)
	}
	if err != nil {
		return err
	}
	changed := loan.changed(key, there)
	if there != nil && len(changed) == 0 && l.lasts(*loan.Leases, there, loan.Names) {
		l.Given.doubts(loan.Owner.UID, false)
		return l.prune(ctx, loan, there)
	}
	asker, err := loan.Ask(ctx)
	if err != nil {
		return err
	}
	if there, err = l.reserve(ctx, there, loan.Secret(nil)); err != nil {
		return err
	}
	if err := l.deliver(ctx, loan, asker, key, there); err != nil {
		return err
	}
	if doubtful := l.Given.doubts(loan.Owner.UID, false); len(changed) > 0 && !doubtful {
		loan.Tampered(ctx, tamperedID(loan.Owner.UID, there), fmt.Sprintf("changed what is in Secret %s, which is as it was again: %s", there.Name, strings.Join(changed, ", ")))
	}
	return nil
}

// Keep keeps what is on lease as it was, and renews it, if another attempt may follow that begins with it.
func (l *Lender) Keep(ctx context.Context, loan *Loan, last bool) error {
	there, err := l.Read(ctx, client.ObjectKeyFromObject(loan.Secret(nil)), loan.Owner)
	if err != nil {
		return err
	}
	if there != nil && !l.lasts(*loan.Leases, there, loan.Names) && last && hasAll(there, loan.Names) {
		return l.prune(ctx, loan, there)
	}
	return l.Lend(ctx, loan)
}

func hasAll(there *corev1.Secret, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(there.Data[name]) == 0 })
}

// reserve makes the Secret, without anything in it, unless it is there and can be written.
func (l *Lender) reserve(ctx context.Context, there, empty *corev1.Secret) (*corev1.Secret, error) {
	if there != nil && there.Type == empty.Type && (there.Immutable == nil || !*there.Immutable) {
		return there, nil
	}
	if there != nil { // it says that it is its owner's, and ours is not like this
		if err := l.Writer.Delete(ctx, there, client.Preconditions{UID: &there.UID}); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	return empty, l.storeSecret(ctx, nil, empty)
}

// deliver has the credentials issued, and puts them into the Secret. A lease goes back only if surely nobody has seen its
// value: it was made for this attempt, which has put it nowhere. If nobody knows whether the Secret has it, as after a
// timeout, it stays: the next attempt finds the value there, or takes the lease over, or replaces and revokes it.
func (l *Lender) deliver(ctx context.Context, loan *Loan, asker *protocol.Client, key []byte, there *corev1.Secret) error {
	before := *loan.Leases
	data, leases, fresh, err := l.issue(ctx, loan, asker, key)
	if err == nil {
		*loan.Leases = leases
		err = loan.Write(ctx)
	}
	stored := false
	if err == nil {
		err = l.storeSecret(ctx, there, loan.Secret(data))
		stored = err == nil || !isRefusal(err)
		if err != nil { // the status says more than the Secret may have
			l.Given.doubts(loan.Owner.UID, true)
		}
	}
	switch {
	case err != nil && !stored && !apierrors.IsConflict(err): // else another attempt may have taken them over
		l.revokeSome(ctx, loan.Of, asker, fresh, true)
		*loan.Leases = before
	case err == nil && !loan.Began:
		l.revokeSome(ctx, loan.Of, asker, replaced(before, leases), false)
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
func (l *Lender) issue(ctx context.Context, loan *Loan, asker *protocol.Client, key []byte) (data map[string][]byte, leases, fresh []v1alpha1.SandboxCredential, err error) {
	data = map[string][]byte{}
	for _, name := range loan.Names {
		issued, err := asker.Issue(ctx, protocol.IssueRequest{Run: loan.Of, Name: name})
		if err != nil {
			return nil, nil, fresh, Obstacle(fmt.Errorf("credential %s: %w", name, err))
		}
		data[name] = []byte(issued.Value)
		lease := v1alpha1.SandboxCredential{
			Name: name, Lease: issued.Lease, ExpiresAt: metav1.NewTime(issued.ExpiresAt.Truncate(time.Second)), Digest: loan.digest(key, name, data),
		}
		leases = append(leases, lease)
		if issued.Fresh {
			fresh = append(fresh, lease)
		}
	}
	return data, leases, fresh, nil
}

// revokeSome has the broker revoke some leases. undelivered says that nobody was given what they are for. What fails here
// the broker revokes when the run has ended.
func (l *Lender) revokeSome(ctx context.Context, of *protocol.Run, asker *protocol.Client, leases []v1alpha1.SandboxCredential, undelivered bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokePerLease)
	defer cancel()
	for _, lease := range leases {
		request := protocol.RevokeRequest{Run: of, Lease: lease.Lease, Undelivered: undelivered}
		if _, err := asker.Revoke(ctx, request); err != nil {
			l.Log.Warn("a lease that nothing uses is not revoked yet", zap.String("kind", of.Kind), zap.String("run", of.Namespace+"/"+of.Name), zap.String("lease", lease.Lease), zap.Error(err))
		}
	}
}

// digestKey is the key of digests: the root of the proxies is the one secret that the reconcilers have, and nobody else. When
// another root takes its place, once in years, what runs have at that time counts as changed.
func (l *Lender) digestKey(ctx context.Context) ([]byte, error) {
	root, err := l.root(ctx)
	if err != nil {
		return nil, err
	}
	return root.Key, nil
}

// digest tells what the Secret has of a credential from what somebody puts into its place.
func (l *Loan) digest(key []byte, name string, data map[string][]byte) string {
	parts := [][]byte{[]byte("credential"), []byte(l.Owner.UID), []byte(name), data[name]}
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		_ = binary.Write(mac, binary.BigEndian, uint64(len(part))) // a hash takes everything
		_, _ = mac.Write(part)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// changed returns the names of the credentials that are not in the Secret as they were put there. Before there is a Job, one
// that is not there at all was not put there yet.
func (l *Loan) changed(key []byte, there *corev1.Secret) (names []string) {
	if there == nil {
		return nil
	}
	for _, c := range *l.Leases {
		if !l.Began && len(there.Data[c.Name]) == 0 {
			continue
		}
		if c.Digest != "" && !hmac.Equal([]byte(c.Digest), []byte(l.digest(key, c.Name, there.Data))) {
			names = append(names, c.Name)
		}
	}
	return names
}

// lasts reports whether a Secret has all credentials, and their leases have not ended.
func (l *Lender) lasts(leases []v1alpha1.SandboxCredential, there *corev1.Secret, names []string) bool {
	until := l.Clock.Now().Add(leaseLeft)
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
func (l *Lender) prune(ctx context.Context, loan *Loan, there *corev1.Secret) error {
	var extra []string
	for key := range maps.Keys(there.Data) {
		if !slices.Contains(loan.Names, key) {
			extra = append(extra, key)
			delete(there.Data, key)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	slices.Sort(extra)
	if err := l.Writer.Update(ctx, there); err != nil {
		return err
	}
	loan.Tampered(ctx, tamperedID(loan.Owner.UID, there), fmt.Sprintf("put keys into Secret %s, which are out of it again: %s", there.Name, strings.Join(extra, ", ")))
	return nil
}

// tamperedID is that of the record of what somebody did to a Secret of an owner.
func tamperedID(owner types.UID, there *corev1.Secret) string {
	return strings.ToLower(string(owner)) + "-credentials-tampered-" + there.ResourceVersion
}
