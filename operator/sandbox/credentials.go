package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// tendAfter is how often the Secret of a run is looked at: it is not watched, since that takes the right to read all Secrets.
const tendAfter = time.Minute

// leaseLeft is how much of a lease must be left for a container to begin with it.
const leaseLeft = 30 * time.Second

// equip makes what the proxy of a run needs, and gives the run its credentials. Their leases are in the status before
// anything uses them.
func (r *runs) equip(ctx context.Context, f *facts, d *decision) error {
	_, ca, err := r.brokers.client(ctx)
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
	if names := f.brokered.inContainer; len(names) > 0 {
		if err := r.lend(ctx, r.loanOf(f, &d.status, names)); err != nil {
			return err
		}
	}
	d.set(f.run, v1alpha1.ConditionBrokerReady, true, v1alpha1.BrokerAnswers, "", now)
	d.set(f.run, v1alpha1.ConditionCredentialsReady, true, v1alpha1.CredentialsIssued, fmt.Sprintf("%d are in the container; the proxy sets the others", len(f.brokered.inContainer)), now)
	return nil
}

// proxyOf is the proxy of a run that has one.
func (r *runs) proxyOf(f *facts) *workload.Proxy {
	options := &r.options
	port, _ := options.Broker.port() // Parts has checked it
	denied := slices.Concat(options.Egress.PodCIDRs, options.Egress.ServiceCIDRs)
	for _, at := range f.apiServer {
		denied = append(denied, netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String())
	}
	return &workload.Proxy{
		Mode: f.brokered.mode, InContainer: f.brokered.inContainer, Image: options.Broker.Image, BrokerURL: options.Broker.URL, BrokerPort: port,
		UpstreamCA: options.Broker.UpstreamCA != "", Denied: denied,
	}
}

// brokerObstacle makes of an error of the broker why the run waits, or why it fails.
func brokerObstacle(err error) error {
	refused := (*protocol.Error)(nil)
	if errors.As(err, &refused) && refused.Code.Fatal() {
		return &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: string(refused.Code), Message: err.Error(), Fatal: true}
	}
	return &conditions.Obstacle{Condition: v1alpha1.ConditionBrokerReady, Reason: v1alpha1.BrokerUnavailable, Message: err.Error(), Poll: true, Refused: refused != nil}
}

// loanOf is what the container of a run has on lease by these names.
func (r *runs) loanOf(f *facts, status *v1alpha1.SandboxRunStatus, names []string) *leasedSecret {
	run := f.run
	return &leasedSecret{
		of: leaseholder(run), owner: owned.ByRun(run), names: names, leases: &status.Credentials, began: f.job != nil,
		keys:   func(name string) []string { return []string{name} },
		fill:   func(name string, value []byte) map[string][]byte { return map[string][]byte{name: value} },
		secret: func(data map[string][]byte) *corev1.Secret { return secretOf(run, owned.SuffixCredentials, data) },
		write:  func(ctx context.Context) error { return r.write(ctx, run, status) },
		ask: func(ctx context.Context) (*protocol.Client, error) {
			asker, _, err := r.brokers.client(ctx)
			if err != nil {
				return nil, brokerObstacle(err)
			}
			return asker, nil
		},
		tampered: func(ctx context.Context, there *corev1.Secret, did string) {
			record := recordOf(run, actionTampered, "somebody "+did)
			record.ID = tamperedID(run.UID, there)
			r.tell(ctx, &record)
			r.event(run, corev1.EventTypeWarning, "CredentialsTampered", "Issue", record.Reason)
		},
	}
}

// leaseholder names a run to the broker.
func leaseholder(run *v1alpha1.SandboxRun) *protocol.Run {
	return &protocol.Run{Kind: protocol.KindRun, Namespace: run.Namespace, Name: run.Name}
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
	taken, blocked := (*owned.TakenError)(nil), (*conditions.Obstacle)(nil)
	switch {
	case err == nil || apierrors.IsConflict(err):
		return err
	case errors.As(err, &blocked):
	case errors.As(err, &taken): // ours was deleted, and somebody made another
		blocked = &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.SandboxNameTaken, Message: err.Error(), Poll: true}
	default:
		blocked = &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.SandboxRefused, Message: err.Error(), Poll: true}
	}
	// The work goes on with what it has, and the run can end.
	r.log.Warn("the credentials of a run are not kept", zap.String("run", f.run.Namespace+"/"+f.run.Name), zap.Error(err))
	blocked.Fatal = false
	d.wait(f.run, blocked, r.options.Clock.Now())
	return nil
}

func (r *runs) tendSecret(ctx context.Context, f *facts, status *v1alpha1.SandboxRunStatus, names []string) error {
	there, err := r.readSecret(ctx, f.run, owned.SuffixCredentials)
	if err != nil {
		return err
	}
	of := r.loanOf(f, status, names)
	if there != nil && !r.lasts(status.Credentials, there, names) && len(f.pods) > int(f.run.Spec.Retries) && hasAll(there, names) {
		return r.prune(ctx, of, there) // no attempt follows
	}
	return r.lend(ctx, of)
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
func (r *runs) revoke(ctx context.Context, run *v1alpha1.SandboxRun) {
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
