package broker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// seeding is a Workspace that is being seeded, which has the name of a run, and what its proxy asks by.
func (w *world) seeding(t *testing.T, name string) (*v1alpha1.Workspace, *protocol.Run, *protocol.Client) {
	t.Helper()
	ws := &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
	testkit.Create(t, admin, ws)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "seed-" + name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ws, v1alpha1.GroupVersion.WithKind("Workspace"))}}}
	job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "work", Image: "example.com/work:1"}}}
	testkit.Create(t, admin, job)
	asker := w.ask(t, w.token(t, w.Namespace, "default", protocol.Audience, w.podOf(t, "seed-"+name, job)))
	if _, err := asker.Egress(t.Context()); err == nil {
		t.Error("the status does not name the Job yet, and its Pod is answered")
	}
	testkit.ChangeStatus(t, admin, ws, func(ws *v1alpha1.Workspace) {
		ws.Status.Phase, ws.Status.SeedJobUID = v1alpha1.WorkspaceSeeding, string(job.UID)
	})
	return ws, &protocol.Run{Kind: protocol.KindWorkspace, Namespace: w.Namespace, Name: name}, asker
}

func (w *world) phase(t *testing.T, ws *v1alpha1.Workspace, phase v1alpha1.WorkspacePhase) {
	t.Helper()
	testkit.ChangeStatus(t, admin, ws, func(ws *v1alpha1.Workspace) { ws.Status.Phase = phase })
}

func (w *world) seeds(t *testing.T) {
	r := w.start(t, "both", "agent-code")
	ws, named, asker := w.seeding(t, "both")
	controller := w.controller(t)
	_, err := asker.Issue(t.Context(), protocol.IssueRequest{Name: "env"})
	refused(t, err, protocol.CodePolicyMissing)
	if !strings.Contains(err.Error(), `applies to Workspace "both"`) {
		t.Errorf("a policy of templates applies to a Workspace: %v", err)
	}
	inside := injected("env", "model-key")
	inside.Delivery = v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: why}}
	pool := injected("pool", "", "a.git.example.com")
	pool.Secret, pool.TokenPool = nil, &v1alpha1.TokenPool{SecretName: "seed-pool"}
	seeds := policy(w.Namespace, "seeds", func(s *v1alpha1.BrokerPolicySpec) {
		s.AppliesToTemplates, s.AppliesToWorkspaces = nil, []string{"bot*"}
		s.Grants.Credentials = append(s.Grants.Credentials, inside, pool)
	})
	testkit.Create(t, admin, secret(w.Namespace, "seed-pool", map[string]string{"one": "only"}), seeds)
	for of, name := range map[*protocol.Client]string{controller: "env", asker: "env"} { // a seed has nothing in its container
		request := protocol.IssueRequest{Name: name}
		if of == controller {
			request.Run = named
		}
		_, err = of.Issue(t.Context(), request)
		refused(t, err, protocol.CodeForbidden)
	}
	issued, err := asker.Issue(t.Context(), protocol.IssueRequest{Name: "model"})
	if err != nil || issued.Header == nil || !strings.Contains(issued.Header.Value, topSecret) {
		t.Fatalf("%v, %+v", err, issued)
	}
	if _, err := asker.Issue(t.Context(), protocol.IssueRequest{Name: "pool"}); err != nil {
		t.Fatal(err)
	}
	if egress, err := asker.Egress(t.Context()); err != nil || len(egress.Allow) == 0 || len(egress.Credentials) != 2 {
		t.Errorf("%v: the proxy of a seed is told %+v", err, egress)
	}
	if err := asker.Report(t.Context(), protocol.Report{ID: "seed", Entries: []protocol.Reported{{Host: "evil.example.com", Port: 443, Reason: "no policy allows it", Count: 1, First: time.Now(), Last: time.Now()}}}); err != nil {
		t.Error(err)
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
	if err := admin.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "seed-both"}}); err != nil { // whose proxy has a token of the pool
		t.Fatal(err)
	}
	testkit.Within(t, patience, "its leases are gone", func(context.Context) bool { return len(w.leasesOf(t, ws)) == 0 })
	_, err = controller.Issue(t.Context(), protocol.IssueRequest{Run: named, Name: "model"})
	refused(t, err, protocol.CodeRunEnded)
	actions, text := w.recordsOf(t, ws)
	if !has(actions, "issued Allowed") || !has(actions, "revoked Allowed") || !has(actions, "issue-refused Denied") || !has(actions, "egress-refused Denied") || strings.Contains(text, topSecret) || !strings.Contains(text, "Workspace") {
		t.Errorf("on record are %q", actions)
	}
	_, err = controller.Issue(t.Context(), protocol.IssueRequest{Run: &protocol.Run{Kind: "Secret", Namespace: w.Namespace, Name: "both"}, Name: "env"})
	refused(t, err, protocol.CodeBadRequest)
	// One that is deleted while it is seeded leaves nothing.
	gone, _, asker := w.seeding(t, "bottom")
	if _, err := asker.Issue(t.Context(), protocol.IssueRequest{Name: "model"}); err != nil {
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
