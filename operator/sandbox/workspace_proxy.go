package sandbox

import (
	"context"
	"errors"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/truncate"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// The seed of a Workspace has a proxy as a run has, by the same rules: it reaches names, and has credentials, through that
// alone. The broker revokes these by itself when the status says that the seed has ended, or when the Workspace is deleted.

// borrower names a Workspace to the broker.
func borrower(ws *v1alpha1.Workspace) *protocol.Run {
	return &protocol.Run{Kind: protocol.KindWorkspace, Namespace: ws.Namespace, Name: ws.Name}
}

// intercept finds out whether the seed is to have a proxy, unless there is something in its way. What names and policies
// refuse, somebody can allow: only a decision that does not hold any more is final.
func (a *workspaceAttempt) intercept(ctx context.Context) (ready bool, err error) {
	proxied, blocked, err := a.facts.Seed(ctx, a.ws)
	if err != nil {
		return false, err
	}
	if blocked != nil {
		a.blocked(blocked)
		return false, nil
	}
	a.intercepted = true
	if a.proxied = proxied; proxied == nil || proxied.Broker == nil {
		return true, nil
	}
	a.set(v1alpha1.ConditionCredentialsReady, true, v1alpha1.CredentialsIssued, "the proxy of the seed sets what policies grant")
	return true, nil
}

// blocked says what the seed waits for, or fails with.
func (a *workspaceAttempt) blocked(of *conditions.Obstacle) {
	switch {
	case of.Reason == v1alpha1.InterceptionChanged:
		a.failed(of.Reason, of.Message)
	case of.Condition == v1alpha1.ConditionInterceptionUnavailable:
		a.waits(v1alpha1.ConditionSeeded, of.Reason, of.Message, true)
	default:
		a.waits(of.Condition, of.Reason, of.Message, of.Poll || of.Fatal)
	}
}

// equipSeed makes what the proxy of the seed needs.
func (a *workspaceAttempt) equipSeed(ctx context.Context) (ready bool, err error) {
	if !a.intercepted { // an attempt before has decided, and what it went by may have changed
		if ready, err := a.intercept(ctx); err != nil || !ready {
			return false, err
		}
	}
	if a.proxied == nil {
		return true, nil
	}
	err = a.lender.EquipProxy(ctx, owned.WorkspaceMeta(a.ws), a.proxied.Broker != nil)
	taken, blocked := (*owned.TakenError)(nil), (*conditions.Obstacle)(nil)
	switch {
	case err == nil && a.proxied.Broker != nil:
		a.set(v1alpha1.ConditionBrokerReady, true, v1alpha1.BrokerAnswers, "")
		return true, nil
	case err == nil:
		return true, nil
	case errors.As(err, &blocked):
		a.blocked(blocked)
	case errors.As(err, &taken):
		a.waits(v1alpha1.ConditionSeeded, v1alpha1.SandboxNameTaken, taken.Error(), true)
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err): // a quota, or a webhook
		a.waits(v1alpha1.ConditionSeeded, v1alpha1.SandboxRefused, err.Error(), true)
	default:
		return false, err
	}
	return false, nil
}

// seedJob is the Job that seeds, with the proxy that was decided.
func (a *workspaceAttempt) seedJob(ctx context.Context) (*batchv1.Job, error) {
	job, err := workload.SeedJob(a.ws, a.options.SeedImage)
	if err != nil || a.status.Interception == "" {
		return job, err
	}
	apiServer, err := a.holder.APIServer(ctx, a.cached)
	if err != nil {
		return nil, err
	}
	a.proxy(a.status.Interception, a.status.Egress.Hosts, a.status.Egress.Broker, apiServer).Into(job)
	return job, nil
}

// discardProxy deletes the Secret of the proxy of a seed that has ended.
func (a *workspaceAttempt) discardProxy(ctx context.Context) error {
	if a.status.Interception == "" {
		return nil
	}
	return a.lender.Discard(ctx, client.ObjectKeyFromObject(owned.Secret(owned.WorkspaceMeta(a.ws), owned.SuffixProxy, nil)), a.ref())
}

// closeProxy does that once, before the status says that the seed has ended, and no more what its proxy has.
func (a *workspaceAttempt) closeProxy(ctx context.Context) error {
	ended := func(phase v1alpha1.WorkspacePhase) bool {
		return phase == v1alpha1.WorkspaceActive || phase == v1alpha1.WorkspaceFailed
	}
	if !ended(a.status.Phase) || ended(a.ws.Status.Phase) {
		return nil
	}
	for _, of := range []string{v1alpha1.ConditionBrokerReady, v1alpha1.ConditionCredentialsReady} {
		meta.RemoveStatusCondition(&a.status.Conditions, of)
	}
	return a.discardProxy(ctx)
}

// asksBroker reports whether the seed may have something on lease.
func (a *workspaceAttempt) asksBroker() bool {
	return a.status.Egress != nil && a.status.Egress.Broker != nil
}

// revokeSeed has the broker revoke what the seed of a Workspace that goes had. The status says before that nothing
// has it any more. What is not managed within the budget stays in the broker's queue, which survives the Workspace.
func (a *workspaceAttempt) revokeSeed(ctx context.Context) error {
	if err := a.discardProxy(ctx); err != nil || !a.asksBroker() {
		return err
	}
	a.status.SeedJobUID = ""
	if err := a.write(ctx); err != nil {
		return err
	}
	a.lender.RevokeAll(ctx, borrower(a.ws), len(workload.SeedCredentials(a.ws.Spec.Seed)), func(reason, note string) {
		object := a.object()
		a.events.Eventf(&object, nil, corev1.EventTypeWarning, reason, "Revoke", "%s", truncate.Text(note, maxNote))
	})
	return nil
}

// ofPolicy finds the Workspaces that may wait for a policy.
func (w *workspaces) ofPolicy() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, policy client.Object) (found []reconcile.Request) {
		var list v1alpha1.WorkspaceList
		if err := w.cached.List(ctx, &list, &client.ListOptions{Namespace: policy.GetNamespace(), UnsafeDisableDeepCopy: new(true)}); err != nil {
			w.log.Warn("Workspaces were not found", zap.Error(err))
			return nil
		}
		for i := range list.Items {
			if ws := &list.Items[i]; ws.Status.Phase == v1alpha1.WorkspaceSeeding && ws.Spec.Seed != nil {
				found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ws)})
			}
		}
		return found
	})
}
