package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
	"github.com/admitkit/admitkit/operator/sandbox/internal/decision"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// tendAfter is how often the Secret of a run is looked at: it is not watched, since that takes the right to read all Secrets.
const tendAfter = time.Minute

// equip makes what the proxy of a run needs, and gives the run its credentials. Their leases are in the status before
// anything uses them.
func (r *runs) equip(ctx context.Context, f *facts.Facts, d *decision.Decision) error {
	brokered := f.Proxied.Broker != nil
	if err := r.lender.EquipProxy(ctx, owned.Meta(f.Run), brokered); err != nil || !brokered {
		return err
	}
	now := r.options.Clock.Now()
	if names := f.Proxied.InContainer; len(names) > 0 {
		if err := r.lender.Lend(ctx, r.loanOf(f, &d.Status, names)); err != nil {
			return err
		}
	}
	d.Set(f.Run, v1alpha1.ConditionBrokerReady, true, v1alpha1.BrokerAnswers, "", now)
	d.Set(f.Run, v1alpha1.ConditionCredentialsReady, true, v1alpha1.CredentialsIssued, fmt.Sprintf("%d are in the container; the proxy sets the others", len(f.Proxied.InContainer)), now)
	return nil
}

// proxyOf is the proxy of a run that has one.
func (r *runs) proxyOf(f *facts.Facts) *workload.Proxy {
	p := r.proxy(f.Proxied.Mode, f.Proxied.Hosts, f.Proxied.Broker, f.APIServer)
	p.InContainer = f.Proxied.InContainer
	return p
}

// proxy is one that lets through these names, or those that a broker says, and no address of the cluster.
func (r *runs) proxy(mode v1alpha1.InterceptionMode, hosts []v1alpha1.EgressName, broker *v1alpha1.EgressBroker, apiServer []netip.AddrPort) *workload.Proxy {
	options := &r.options
	p := &workload.Proxy{
		Mode: mode, Hosts: hosts, Image: options.Proxy.Image, UpstreamCA: options.Proxy.UpstreamCA != "",
		Denied: slices.Concat(options.Egress.PodCIDRs, options.Egress.ServiceCIDRs),
	}
	for _, at := range apiServer {
		p.Denied = append(p.Denied, netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String())
	}
	if broker != nil {
		p.BrokerURL, p.BrokerPort = options.Broker.URL, broker.Port
	}
	return p
}

// loanOf is what the container of a run has on lease by these names.
func (r *runs) loanOf(f *facts.Facts, status *v1alpha1.SandboxRunStatus, names []string) *credentials.Loan {
	run := f.Run
	return &credentials.Loan{
		Of: leaseholder(run), Owner: owned.ByRun(run), Names: names, Leases: &status.Credentials, Began: f.Job != nil,
		Secret: func(data map[string][]byte) *corev1.Secret {
			return owned.Secret(owned.Meta(run), owned.SuffixCredentials, data)
		},
		Write: func(ctx context.Context) error { return r.write(ctx, run, status) },
		Ask:   r.lender.Ask,
		Tampered: func(ctx context.Context, id, did string) {
			record := recordOf(run, actionTampered, "somebody "+did)
			record.ID = id
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
func (r *runs) tend(ctx context.Context, f *facts.Facts, d *decision.Decision) error {
	var names []string
	for _, c := range f.Run.Status.Credentials {
		names = append(names, c.Name)
	}
	if f.Unproven || len(names) == 0 || f.Run.Status.Phase.Terminal() || d.Status.Phase.Terminal() {
		return nil
	}
	if again := r.options.Clock.Now().Add(tendAfter); d.Next.IsZero() || again.Before(d.Next) {
		d.Next = again
	}
	err := r.lender.Keep(ctx, r.loanOf(f, &d.Status, names), len(f.Pods) > int(f.Run.Spec.Retries)) // else an attempt follows
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
	r.log.Warn("the credentials of a run are not kept", zap.String("run", f.Run.Namespace+"/"+f.Run.Name), zap.Error(err))
	blocked.Fatal = false
	d.Wait(f.Run, blocked, r.options.Clock.Now())
	return nil
}

// revoke has the broker revoke what a run that goes has. What it does not manage within the budget stays in the
// broker's queue, which survives the run.
func (r *runs) revoke(ctx context.Context, run *v1alpha1.SandboxRun) {
	if e := run.Status.Egress; e == nil || e.Broker == nil {
		return
	}
	r.lender.RevokeAll(ctx, leaseholder(run), len(run.Status.Credentials), func(reason, note string) {
		r.event(run, corev1.EventTypeWarning, reason, "Revoke", note)
	})
}

// discardSecrets deletes the Secrets of a run that is about to have ended: nobody uses them any more.
func (r *runs) discardSecrets(ctx context.Context, run *v1alpha1.SandboxRun, status *v1alpha1.SandboxRunStatus) error {
	if !status.Phase.Terminal() || run.Status.Phase.Terminal() || run.Status.Interception == "" {
		return nil
	}
	for _, suffix := range []string{owned.SuffixProxy, owned.SuffixCredentials} {
		key := owned.Name(run)
		key.Name += suffix
		if err := r.lender.Discard(ctx, key, owned.ByRun(run)); err != nil {
			return err
		}
	}
	return nil
}
