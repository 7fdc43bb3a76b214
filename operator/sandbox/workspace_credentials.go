package sandbox

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/truncate"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// The seed of a Workspace has credentials on lease as the container of a run has: they are in a Secret of the Workspace
// from before its Job is there until that has ended. The broker revokes them by itself when the status says so, or when
// the Workspace is deleted.

// borrower names a Workspace to the broker.
func borrower(ws *v1alpha1.Workspace) *protocol.Run {
	return &protocol.Run{Kind: protocol.KindWorkspace, Namespace: ws.Namespace, Name: ws.Name}
}

// gitUser is the user that servers of git want beside a token. Most take any.
func gitUser(grant *v1alpha1.CredentialGrant) string {
	if grant.GitHubApp != nil {
		return "x-access-token"
	}
	return "git"
}

// equipSeed brings the Secret of a seed into being, and keeps it as it was, with leases that last, while it fetches. began
// says that the Job is there, which goes on with what it has.
func (a *workspaceAttempt) equipSeed(ctx context.Context, began bool) (ready bool, err error) {
	names := workload.SeedCredentials(a.ws.Spec.Seed)
	if len(names) == 0 {
		return true, nil
	}
	err = a.leaseSeed(ctx, names, began)
	for _, lease := range a.status.Credentials {
		if renew := lease.ExpiresAt.Add(-credentials.LeaseLeft); a.next.IsZero() || renew.Before(a.next) {
			a.next = renew
		}
	}
	if again := a.options.Clock.Now().Add(tendAfter); began && (a.next.IsZero() || again.Before(a.next)) {
		a.next = again
	}
	taken, blocked := (*owned.TakenError)(nil), (*conditions.Obstacle)(nil)
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &blocked):
		a.refused = blocked.Refused || blocked.Fatal
	case errors.As(err, &taken):
		blocked = &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.SandboxNameTaken, Message: taken.Error(), Poll: true}
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err): // a quota, or a webhook
		blocked = &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.SandboxRefused, Message: err.Error(), Poll: true}
	default:
		return false, err
	}
	if began {
		a.log.Warn("the credentials of a seed are not renewed", zap.String("workspace", a.ws.Namespace+"/"+a.ws.Name), zap.Error(err))
		a.set(blocked.Condition, false, blocked.Reason, blocked.Message)
		a.poll = true
		return true, nil
	}
	// What the broker refuses, somebody can grant: nothing is fatal.
	a.waits(blocked.Condition, blocked.Reason, blocked.Message, blocked.Poll || blocked.Fatal)
	return false, nil
}

func (a *workspaceAttempt) leaseSeed(ctx context.Context, names []string, began bool) error {
	if !a.options.Broker.on() {
		return &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.BrokerNotConfigured, Message: brokerpolicy.NotConfigured}
	}
	return a.lender.Lend(ctx, a.loan(names, began))
}

// loan is what the seed has on lease by these names.
func (a *workspaceAttempt) loan(names []string, began bool) *credentials.Loan {
	var grants map[string]*v1alpha1.CredentialGrant
	return &credentials.Loan{
		Of: borrower(a.ws), Owner: a.ref(), Names: names, Leases: &a.status.Credentials, Began: began, Secret: a.seedSecret, Tampered: a.tellTampered,
		Keys: func(name string) []string { return []string{name, name + owned.SuffixUsername} },
		Fill: func(name string, value []byte) map[string][]byte {
			return map[string][]byte{name: value, name + owned.SuffixUsername: []byte(gitUser(grants[name]))}
		},
		Ask: func(ctx context.Context) (asker *protocol.Client, err error) {
			asker, grants, err = a.askForSeed(ctx, names)
			return asker, err
		},
		Write: func(ctx context.Context) error {
			a.set(v1alpha1.ConditionBrokerReady, true, v1alpha1.BrokerAnswers, "")
			a.set(v1alpha1.ConditionCredentialsReady, true, v1alpha1.CredentialsIssued, fmt.Sprintf("%d are with the seed, until it has ended", len(a.status.Credentials)))
			return a.write(ctx)
		},
	}
}

// askForSeed returns a client of the broker, and what policies grant by these names.
func (a *workspaceAttempt) askForSeed(ctx context.Context, names []string) (*protocol.Client, map[string]*v1alpha1.CredentialGrant, error) {
	grants, problem, err := brokerpolicy.ForSeed(ctx, a.cached, a.ws.Namespace, a.ws.Name, names)
	if err != nil {
		return nil, nil, err
	}
	if problem != "" {
		return nil, nil, &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: v1alpha1.CredentialsNotGranted, Message: problem}
	}
	asker, err := a.lender.Ask(ctx)
	return asker, grants, err
}

func (a *workspaceAttempt) seedSecret(values map[string][]byte) *corev1.Secret {
	meta := owned.WorkspaceMeta(a.ws)
	meta.Name = owned.CredentialsOfSeed(a.ws).Name
	return &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeOpaque, Data: values}
}

// tellTampered records what somebody did to the Secret of the seed: names, and no values.
func (a *workspaceAttempt) tellTampered(ctx context.Context, id, did string) {
	object := a.object()
	record := extension.Record{ID: id, Action: actionTampered, Reason: truncate.Text("somebody "+did, maxNote), Object: object}
	a.tell(ctx, &record)
	a.events.Eventf(&object, nil, corev1.EventTypeWarning, "CredentialsTampered", "Issue", "%s", record.Reason)
}

// discreet takes out of the last words of a seed what it had on lease: its image may be anybody's.
func (a *workspaceAttempt) discreet(ctx context.Context, message string) (string, error) {
	if len(workload.SeedCredentials(a.ws.Spec.Seed)) == 0 {
		return message, nil
	}
	_, err := a.lender.Read(ctx, owned.CredentialsOfSeed(a.ws), a.ref()) // which learns them
	if taken := (*owned.TakenError)(nil); err != nil && !errors.As(err, &taken) {
		return "", err
	}
	return a.lender.Given.Redact(a.ws.UID, a.status.Credentials, message), nil
}

// returnCredentials deletes the Secret of a seed that has ended, before the status says so. The broker revokes the leases then.
func (a *workspaceAttempt) returnCredentials(ctx context.Context) error {
	ended := func(phase v1alpha1.WorkspacePhase) bool {
		return phase == v1alpha1.WorkspaceActive || phase == v1alpha1.WorkspaceFailed
	}
	if !ended(a.status.Phase) || ended(a.ws.Status.Phase) || len(workload.SeedCredentials(a.ws.Spec.Seed)) == 0 {
		return nil
	}
	if err := a.discardCredentials(ctx); err != nil {
		return err
	}
	a.status.Credentials = nil
	a.set(v1alpha1.ConditionCredentialsReady, false, v1alpha1.CredentialsReturned, "the seed has ended, and its Secret is deleted; the broker revokes the leases")
	return nil
}

func (a *workspaceAttempt) discardCredentials(ctx context.Context) error {
	if len(workload.SeedCredentials(a.ws.Spec.Seed)) == 0 {
		return nil
	}
	defer a.lender.Given.Forget(a.ws.UID)
	return a.lender.Discard(ctx, owned.CredentialsOfSeed(a.ws), a.ref())
}

// revokeSeed has the broker revoke what the seed of a Workspace that goes had. The status says before that nothing
// has it any more. What is not managed within the budget stays in the broker's queue, which survives the Workspace.
func (a *workspaceAttempt) revokeSeed(ctx context.Context) error {
	if err := a.discardCredentials(ctx); err != nil || len(a.status.Credentials) == 0 {
		return err
	}
	a.status.SeedJobUID = ""
	if err := a.write(ctx); err != nil {
		return err
	}
	a.lender.RevokeAll(ctx, borrower(a.ws), len(a.status.Credentials), func(reason, note string) {
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
			if ws := &list.Items[i]; ws.Status.Phase == v1alpha1.WorkspaceSeeding && len(workload.SeedCredentials(ws.Spec.Seed)) > 0 {
				found = append(found, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ws)})
			}
		}
		return found
	})
}
