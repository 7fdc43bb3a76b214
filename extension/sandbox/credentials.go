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
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/sandbox/broker/protocol"
)

// tendAfter is how often the Secret of a run is looked at: it is not watched, since that takes the right to read all Secrets.
const tendAfter = time.Minute

// leaseLeft is how much of a lease must be left for a container to begin with it.
const leaseLeft = 30 * time.Second

// obstacleError is an obstacle that was met on the way.
type obstacleError struct{ *obstacle }

func (e *obstacleError) Error() string { return e.message }

// equip makes what the proxy of a run needs, and gives the run its credentials. Their leases are in the status before
// anything uses them.
func (r *runs) equip(ctx context.Context, f *facts, d *decision) error {
	asker, ca, err := r.brokers.client(ctx)
	if err != nil {
		return brokerObstacle(err)
	}
	upstream, err := r.upstream(ctx)
	if err != nil {
		return brokerObstacle(err)
	}
	err = r.makeAuthority(ctx, f.run, ca, upstream)
	if apierrors.IsNotFound(err) { // the root
		return brokerObstacle(err)
	}
	if err != nil {
		return err
	}
	now := r.options.Clock.Now()
	if err := r.lease(ctx, f.run, &d.status, asker, f.brokered.inContainer); err != nil {
		return err
	}
	d.set(f.run, v1alpha1.ConditionBrokerReady, true, v1alpha1.BrokerAnswers, "", now)
	d.set(f.run, v1alpha1.ConditionCredentialsReady, true, v1alpha1.CredentialsIssued, fmt.Sprintf("%d are in the container; the proxy sets the others", len(f.brokered.inContainer)), now)
	return nil
}

// brokerObstacle makes of an error of the broker why the run waits, or why it fails.
func brokerObstacle(err error) error {
	refused := (*protocol.Error)(nil)
	if errors.As(err, &refused) && refused.Code.Fatal() {
		return &obstacleError{&obstacle{condition: v1alpha1.ConditionCredentialsReady, reason: string(refused.Code), message: err.Error(), fatal: true}}
	}
	return &obstacleError{&obstacle{condition: v1alpha1.ConditionBrokerReady, reason: v1alpha1.BrokerUnavailable, message: err.Error(), poll: true}}
}

// lease brings the Secret with the credentials of a container into being. If all of them are there and last, it asks
// nobody. The Secret is there before anything is leased, so that a name that is taken, or a quota, leases nothing. What
// cannot be stored is given back, unless a container may have it already. Somebody who changed the Secret is on record.
func (r *runs) lease(ctx context.Context, run *v1alpha1.HarnessRun, status *v1alpha1.HarnessRunStatus, asker *protocol.Client, names []string) error {
	if len(names) == 0 {
		return nil
	}
	there, err := r.readSecret(ctx, run, suffixCredentials)
	if err != nil {
		return err
	}
	changed, err := r.changed(ctx, run, status, there)
	if err != nil {
		return err
	}
	if there != nil && len(changed) == 0 && r.lasts(status.Credentials, there, names) {
		return r.prune(ctx, run, there, names)
	}
	if there, err = r.reserve(ctx, there, secretOf(run, suffixCredentials, nil)); err != nil {
		return err
	}
	var leases []v1alpha1.HarnessCredential
	values, err := r.issue(ctx, run, asker, names, &leases)
	if err == nil {
		status.Credentials = leases
		err = r.write(ctx, run, status)
	}
	if err == nil {
		err = r.storeSecret(ctx, there, secretOf(run, suffixCredentials, values))
	}
	switch {
	case err == nil && len(changed) > 0:
		r.tellTampered(ctx, run, there, "changed what is in Secret %s, which is as it was again: "+strings.Join(changed, ", "))
	case err != nil && run.Status.JobUID == "" && !apierrors.IsConflict(err): // else the next attempt has the same leases
		r.giveBack(ctx, leaseholder(run), asker, leases)
	}
	return err
}

// leaseholder names a run to the broker.
func leaseholder(run *v1alpha1.HarnessRun) *protocol.Run {
	return &protocol.Run{Kind: protocol.KindRun, Namespace: run.Namespace, Name: run.Name}
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

// issue asks for credentials. leases has those that were issued, also if it fails.
func (r *runs) issue(ctx context.Context, run *v1alpha1.HarnessRun, asker *protocol.Client, names []string, leases *[]v1alpha1.HarnessCredential) (map[string][]byte, error) {
	key, err := r.digestKey(ctx)
	if err != nil {
		return nil, err
	}
	values := map[string][]byte{}
	for _, name := range names {
		value, lease, err := issueOne(ctx, asker, leaseholder(run), name)
		if err != nil {
			return nil, err
		}
		lease.Digest = digest(key, run, name, value)
		values[name], *leases = value, append(*leases, lease)
	}
	return values, nil
}

// issueOne asks for a credential of a run or a seed. An error is an obstacle.
func issueOne(ctx context.Context, asker *protocol.Client, of *protocol.Run, name string) (value []byte, lease v1alpha1.HarnessCredential, err error) {
	issued, err := asker.Issue(ctx, protocol.IssueRequest{Run: of, Name: name})
	if err != nil {
		return nil, lease, brokerObstacle(fmt.Errorf("credential %s: %w", name, err))
	}
	lease = v1alpha1.HarnessCredential{Name: name, Lease: issued.Lease, ExpiresAt: metav1.NewTime(issued.ExpiresAt.Truncate(time.Second))}
	return []byte(issued.Value), lease, nil
}

// giveBack has the broker revoke what no container was given. What fails here the broker revokes when the run, or the seed,
// has ended.
func (r *runs) giveBack(ctx context.Context, of *protocol.Run, asker *protocol.Client, leases []v1alpha1.HarnessCredential) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokePerLease)
	defer cancel()
	for _, lease := range leases {
		request := protocol.RevokeRequest{Run: of, Lease: lease.Lease, Undelivered: true}
		if _, err := asker.Revoke(ctx, request); err != nil {
			r.log.Warn("a lease that nobody was given is not revoked yet", zap.String("kind", of.Kind), zap.String("run", of.Namespace+"/"+of.Name), zap.String("lease", lease.Lease), zap.Error(err))
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

// digest tells a value of a run's credential from another.
func digest(key []byte, run *v1alpha1.HarnessRun, name string, value []byte) string {
	mac := hmac.New(sha256.New, key)
	for _, part := range [][]byte{[]byte("credential"), []byte(run.UID), []byte(name), value} {
		_ = binary.Write(mac, binary.BigEndian, uint64(len(part))) // a hash takes everything
		_, _ = mac.Write(part)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// changed returns the names of the credentials that are not in the Secret as they were put there.
func (r *runs) changed(ctx context.Context, run *v1alpha1.HarnessRun, status *v1alpha1.HarnessRunStatus, there *corev1.Secret) (names []string, err error) {
	if len(status.Credentials) == 0 || there == nil {
		return nil, nil
	}
	key, err := r.digestKey(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range status.Credentials {
		if c.Digest != "" && !hmac.Equal([]byte(c.Digest), []byte(digest(key, run, c.Name, there.Data[c.Name]))) {
			names = append(names, c.Name)
		}
	}
	return names, nil
}

// lasts reports whether a Secret has all credentials, and their leases have not ended.
func (r *runs) lasts(leases []v1alpha1.HarnessCredential, there *corev1.Secret, names []string) bool {
	until := r.options.Clock.Now().Add(leaseLeft)
	for _, name := range names {
		i := slices.IndexFunc(leases, func(c v1alpha1.HarnessCredential) bool { return c.Name == name })
		if i < 0 || !leases[i].ExpiresAt.After(until) || len(there.Data[name]) == 0 {
			return false
		}
	}
	return true
}

// prune takes out of a Secret what somebody has put into it. The container would not see it: it gets each credential
// by its name.
func (r *runs) prune(ctx context.Context, run *v1alpha1.HarnessRun, there *corev1.Secret, names []string) error {
	var extra []string
	for key := range maps.Keys(there.Data) {
		if !slices.Contains(names, key) {
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
	r.tellTampered(ctx, run, there, "put keys into Secret %s, which are out of it again: "+strings.Join(extra, ", "))
	return nil
}

// tellTampered records what somebody did to the Secret: names, and no values.
func (r *runs) tellTampered(ctx context.Context, run *v1alpha1.HarnessRun, there *corev1.Secret, did string) {
	record := recordOf(run, "credentials-tampered", "somebody "+strings.ReplaceAll(did, "%s", there.Name))
	record.ID += "-" + there.ResourceVersion
	r.tell(ctx, &record)
	r.event(run, corev1.EventTypeWarning, "CredentialsTampered", "Issue", record.Reason)
}

// tend keeps the credentials of a run that has its Job as they were, and renews them for attempts that follow.
func (r *runs) tend(ctx context.Context, f *facts, d *decision) error {
	var names []string
	for _, c := range f.run.Status.Credentials {
		names = append(names, c.Name)
	}
	if f.unproven || len(names) == 0 || f.run.Status.Phase.Terminal() || d.status.Phase.Terminal() {
		return nil
	}
	if again := r.options.Clock.Now().Add(tendAfter); d.next.IsZero() || again.Before(d.next) {
		d.next = again
	}
	err := r.tendSecret(ctx, f, &d.status, names)
	taken, blocked := (*takenError)(nil), &obstacleError{}
	switch {
	case err == nil || apierrors.IsConflict(err):
		return err
	case errors.As(err, &blocked):
	case errors.As(err, &taken): // ours was deleted, and somebody made another
		blocked.obstacle = &obstacle{condition: v1alpha1.ConditionCredentialsReady, reason: v1alpha1.HarnessNameTaken, message: err.Error(), poll: true}
	default:
		blocked.obstacle = &obstacle{condition: v1alpha1.ConditionCredentialsReady, reason: v1alpha1.HarnessRefused, message: err.Error(), poll: true}
	}
	// The work goes on with what it has, and the run can end.
	r.log.Warn("the credentials of a run are not kept", zap.String("run", f.run.Namespace+"/"+f.run.Name), zap.Error(err))
	blocked.fatal = false
	d.wait(f.run, blocked.obstacle, r.options.Clock.Now())
	return nil
}

func (r *runs) tendSecret(ctx context.Context, f *facts, status *v1alpha1.HarnessRunStatus, names []string) error {
	there, err := r.readSecret(ctx, f.run, suffixCredentials)
	if err != nil {
		return err
	}
	if there != nil && !r.lasts(status.Credentials, there, names) && len(f.pods) > int(f.run.Spec.Retries) && hasAll(there, names) {
		return r.prune(ctx, f.run, there, names) // no attempt follows
	}
	asker, _, err := r.brokers.client(ctx)
	if err != nil {
		return brokerObstacle(err)
	}
	return r.lease(ctx, f.run, status, asker, names)
}

func hasAll(there *corev1.Secret, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(there.Data[name]) == 0 })
}

// The budget for revoking the leases of a run before it goes.
const (
	revokePerLease = 5 * time.Second
	maxRevoke      = 30 * time.Second
)

// revokeBudget is how long a run that goes waits for so many leases.
func revokeBudget(leases int) time.Duration {
	return min(revokePerLease*time.Duration(max(leases, 1)), maxRevoke)
}

// revoke has the broker revoke what a run that goes has. What it does not manage within the budget stays in the
// broker's queue, which survives the run.
func (r *runs) revoke(ctx context.Context, run *v1alpha1.HarnessRun) {
	if run.Status.Interception == "" {
		return
	}
	r.revokeAll(ctx, leaseholder(run), len(run.Status.Credentials), func(reason, note string) {
		r.event(run, corev1.EventTypeWarning, reason, "Revoke", note)
	})
}

// revokeAll has the broker revoke all leases of a run or a seed, so many of which are known, and tells what is left to it.
func (r *runs) revokeAll(ctx context.Context, of *protocol.Run, known int, tell func(reason, note string)) {
	if !r.options.Broker.on() || r.brokers == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeBudget(known))
	defer cancel()
	asker, _, err := r.brokers.client(ctx)
	var queued []string
	if err == nil {
		queued, err = asker.Revoke(ctx, protocol.RevokeRequest{Run: of})
	}
	switch {
	case err != nil:
		r.log.Error("leases are not revoked yet: the broker revokes them by itself when it runs", zap.String("kind", of.Kind), zap.String("run", of.Namespace+"/"+of.Name), zap.Error(err))
		tell("RevokeFailed", "the broker revokes the leases when it can: "+err.Error())
	case len(queued) > 0:
		tell("RevokeQueued", "the broker still revokes CredentialLeases "+strings.Join(queued, ", "))
	}
}
