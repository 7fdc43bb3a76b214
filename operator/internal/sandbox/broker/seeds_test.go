package broker_test

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// seeding is a Workspace that is being seeded, which has the name of a run.
func (w *world) seeding(t *testing.T, name string) (*v1alpha1.Workspace, *protocol.Run) {
	t.Helper()
	ws := &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
	testkit.Create(t, admin, ws)
	w.phase(t, ws, v1alpha1.WorkspaceSeeding)
	return ws, &protocol.Run{Kind: protocol.KindWorkspace, Namespace: w.Namespace, Name: name}
}

func (w *world) phase(t *testing.T, ws *v1alpha1.Workspace, phase v1alpha1.WorkspacePhase) {
	t.Helper()
	testkit.ChangeStatus(t, admin, ws, func(ws *v1alpha1.Workspace) { ws.Status.Phase = phase })
}

func (w *world) seeds(t *testing.T) {
	r := w.start(t, "both", "agent-code")
	ws, named := w.seeding(t, "both")
	controller := w.controller(t)
	_, err := controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "env"})
	refused(t, err, protocol.CodePolicyMissing)
	if !strings.Contains(err.Error(), `applies to Workspace "both"`) {
		t.Errorf("a policy of templates applies to a Workspace: %v", err)
	}
	inside := injected("env", "model-key")
	inside.Delivery = v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: why}}
	pool := inside
	pool.Name, pool.Secret, pool.TokenPool = "pool", nil, &v1alpha1.TokenPool{SecretName: "seed-pool"}
	seeds := policy(w.Namespace, "seeds", func(s *v1alpha1.BrokerPolicySpec) {
		s.AppliesToTemplates, s.AppliesToWorkspaces = nil, []string{"bot*"}
		s.Grants.Credentials = append(s.Grants.Credentials, inside, pool)
	})
	testkit.Create(t, admin, secret(w.Namespace, "seed-pool", map[string]string{"one": "only"}), seeds)
	_, err = controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "model"})
	refused(t, err, protocol.CodeForbidden) // a seed has no proxy
	issued, err := controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "env"})
	if err != nil || issued.Value != topSecret {
		t.Fatalf("%v, %+v", err, issued)
	}
	if _, err := controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "pool"}); err != nil {
		t.Fatal(err)
	}
	held := w.leasesOf(t, ws)
	if len(held) != 2 || held[0].Spec.Run.Kind != v1alpha1.LeaseOfWorkspace || len(w.leases(t, r)) > 0 {
		t.Errorf("%+v", held)
	}
	// The end of a run of its name is not its end, and what cannot be revoked is held until the seed has ended.
	r.become(t, "Succeeded")
	if queued, err := controller.Revoke(t.Context(), protocol.RevokeRequest{Run: r.named()}); err != nil || len(queued) > 0 || len(w.leasesOf(t, ws)) != 2 {
		t.Errorf("%v, %v: a run of its name ends what a Workspace has", queued, err)
	}
	if queued, err := controller.Revoke(t.Context(), protocol.RevokeRequest{Run: named}); err != nil || len(queued) != 1 {
		t.Errorf("%v (%v) are queued", queued, err)
	}
	w.phase(t, ws, v1alpha1.WorkspaceActive)
	testkit.Within(t, patience, "its leases are gone", func(context.Context) bool { return len(w.leasesOf(t, ws)) == 0 })
	_, err = controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "env"})
	refused(t, err, protocol.CodeRunEnded)
	actions, text := w.recordsOf(t, ws)
	if !has(actions, "issued Allowed") || !has(actions, "revoked Allowed") || !has(actions, "issue-refused Denied") || strings.Contains(text, topSecret) || !strings.Contains(text, "Workspace") {
		t.Errorf("on record are %q", actions)
	}
	_, err = controller.Issue(t.Context(), protocol.IssueRequest{Run: &protocol.Run{Kind: "Secret", Namespace: w.Namespace, Name: "both"}, Name: "env"})
	refused(t, err, protocol.CodeBadRequest)
	// One that is deleted while it is seeded leaves nothing.
	gone, named := w.seeding(t, "bottom")
	if _, err := controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "env"}); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), gone.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, patience, "its leases are gone", func(context.Context) bool { return len(w.leasesOf(t, gone)) == 0 })
	if err := admin.Delete(t.Context(), seeds); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}
