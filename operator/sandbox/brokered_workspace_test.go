package sandbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// borrows is a Workspace whose seed needs what the policy of templates calls MODEL.
func (l *leased) borrows(t *testing.T, name string) *v1alpha1.Workspace {
	t.Helper()
	ws := workspace(l.here, name, v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a", Credential: "MODEL"})
	testkit.Create(t, l.alice, ws)
	return ws
}

// fetches is one whose seed has its Pod, which waits.
func (l *leased) fetches(t *testing.T, name string) *v1alpha1.Workspace {
	t.Helper()
	ws := l.borrows(t, name)
	awaitWorkspace(t, ws, "fetches", func(s *v1alpha1.WorkspaceStatus) bool { return s.SeedJobUID != "" })
	return ws
}

// endSeed plays the kubelet: the Pod of the seed has ended, with these last words.
func (l *leased) endSeed(t *testing.T, ws *v1alpha1.Workspace, phase corev1.PodPhase, words string) {
	t.Helper()
	var pods corev1.PodList
	testkit.Within(t, patience, "the seed has its Pod", func(ctx context.Context) bool {
		return admin.List(ctx, &pods, client.InNamespace(l.here), client.MatchingLabels{sandbox.LabelWorkspace: ws.Name}) == nil && len(pods.Items) == 1
	})
	ends(t, &pods.Items[0], phase, 1, words)
}

func (l *leased) lent(ws *v1alpha1.Workspace) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "workspace-" + ws.Name + "-credentials"}}
}

// returned expects that nothing is left of what a seed had.
func (l *leased) returned(t *testing.T, ws *v1alpha1.Workspace) {
	t.Helper()
	gone(t, l.lent(ws))
	testkit.Within(t, patience, "its leases are revoked", func(context.Context) bool { return len(l.leases(t, ws)) == 0 })
}

func (l *leased) seeded(t *testing.T) {
	grant(t, "alice", rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"workspaces"}, Verbs: []string{"create", "get", "delete"}})
	ws := l.borrows(t, "lent-1")
	waits := func(text string) func(*v1alpha1.WorkspaceStatus) bool {
		return func(s *v1alpha1.WorkspaceStatus) bool {
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionCredentialsReady)
			return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.CredentialsNotGranted && strings.Contains(c.Message, text) && s.SeedJobUID == ""
		}
	}
	awaitWorkspace(t, ws, "waits: what its policy gives to templates is not for Workspaces", waits("MODEL is granted by none: add lent-1 to spec.appliesToWorkspaces of coders, which grants it"))
	if leases := l.leases(t, ws); len(leases) > 0 {
		t.Errorf("it has leases without a policy: %+v", leases)
	}
	lender := policyOf(l.here, "lender", "")
	lender.Spec.AppliesToTemplates, lender.Spec.AppliesToWorkspaces, lender.Spec.Interception = nil, []string{"lent-*"}, v1alpha1.BrokerInterception{}
	testkit.Create(t, admin, lender)
	if out, err := server.Kubectl(t.Context(), nil, "-n", l.here, "get", "bpol", "lender").CombinedOutput(); err != nil || !strings.Contains(string(out), "WORKSPACES") || !strings.Contains(string(out), "lent-*") {
		t.Errorf("kubectl does not print to which Workspaces it applies: %v: %s", err, out)
	}
	awaitWorkspace(t, ws, "fetches", func(s *v1alpha1.WorkspaceStatus) bool { return s.SeedJobUID != "" })
	l.checkLent(t, ws)
	l.endSeed(t, ws, corev1.PodSucceeded, "")
	awaitWorkspace(t, ws, "is active", active)
	l.returned(t, ws)
	if c := meta.FindStatusCondition(ws.Status.Conditions, v1alpha1.ConditionCredentialsReady); c == nil || c.Reason != v1alpha1.CredentialsReturned || len(ws.Status.Credentials) > 0 {
		t.Errorf("%+v, %+v", c, ws.Status.Credentials)
	}
	l.seedTampered(t)
	failing := l.fetches(t, "lent-2")
	l.endSeed(t, failing, corev1.PodFailed, "who are you, git:sesame?")
	awaitWorkspace(t, failing, "has failed", func(s *v1alpha1.WorkspaceStatus) bool { return s.Phase == v1alpha1.WorkspaceFailed })
	l.returned(t, failing)
	if c := meta.FindStatusCondition(failing.Status.Conditions, v1alpha1.ConditionSeeded); c == nil || !strings.Contains(c.Message, "who are you, git:***?") {
		t.Errorf("%+v", c)
	}
	deleted := l.fetches(t, "lent-3")
	if err := l.alice.Delete(t.Context(), deleted.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	gone(t, deleted)
	l.returned(t, deleted)
	taken := workspace(l.here, "lent-4")
	testkit.Create(t, admin, l.lent(taken))
	taken = l.borrows(t, "lent-4")
	awaitWorkspace(t, taken, "says that the name of its Secret is taken", func(s *v1alpha1.WorkspaceStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionCredentialsReady)
		return c != nil && c.Reason == v1alpha1.SandboxNameTaken && s.SeedJobUID == ""
	})
	if leases := l.leases(t, taken); len(leases) > 0 {
		t.Errorf("it leases what it cannot keep: %+v", leases)
	}
}

// seedTampered changes the Secret of a seed that fetches.
func (l *leased) seedTampered(t *testing.T) {
	t.Helper()
	ws := l.fetches(t, "lent-tampered")
	lease := ws.Status.Credentials[0]
	for n, text := range []string{`{"stringData": {"LD_PRELOAD": "evil"}}`, `{"stringData": {"MODEL": "evil"}}`, `{"stringData": {"MODEL.username": "evil"}}`} {
		if err := admin.Patch(t.Context(), l.lent(ws), client.RawPatch("application/merge-patch+json", []byte(text))); err != nil {
			t.Fatal(err)
		}
		touch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"annotations": {"example.com/touched": "%d"}}}`, n))
		if err := admin.Patch(t.Context(), ws.DeepCopy(), touch); err != nil {
			t.Fatal(err)
		}
		testkit.Succeeds(t, patience, "the Secret is as it was, and that is on record", func(ctx context.Context) error {
			secret := l.lent(ws)
			if err := admin.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
				return err
			}
			if len(secret.Data) != 2 || string(secret.Data["MODEL"]) != "sesame" || string(secret.Data["MODEL.username"]) != "git" {
				return fmt.Errorf("after %s it has %d keys", text, len(secret.Data))
			}
			l.kept.mu.Lock()
			defer l.kept.mu.Unlock()
			records := 0
			for _, record := range l.kept.kept {
				if record.Object.UID == ws.UID && record.Action == "credentials-tampered" && !strings.Contains(record.Reason, "evil") {
					records++
				}
			}
			if records != n+1 {
				return fmt.Errorf("%d records", records)
			}
			return nil
		})
	}
	if leases := l.leases(t, ws); len(leases) != 1 || leases[0].Name != lease.Lease || lease.Digest == "" {
		t.Errorf("%+v, %+v", leases, lease)
	}
	l.endSeed(t, ws, corev1.PodSucceeded, "")
	awaitWorkspace(t, ws, "is active", active)
	l.returned(t, ws)
}

// checkLent expects the credential in the Secret, by a lease, and nowhere else.
func (l *leased) checkLent(t *testing.T, ws *v1alpha1.Workspace) {
	t.Helper()
	leases := l.leases(t, ws)
	if len(leases) != 1 || leases[0].Spec.Run.Kind != v1alpha1.LeaseOfWorkspace || leases[0].Spec.Run.Name != ws.Name || leases[0].Spec.Policy != "lender" ||
		len(ws.Status.Credentials) != 1 || ws.Status.Credentials[0].Lease != leases[0].Name {
		t.Errorf("%+v, %+v", leases, ws.Status.Credentials)
	}
	secret, job := l.lent(ws), &batchv1.Job{}
	testkit.Succeeds(t, patience, "there are its Secret and its Job", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		return admin.Get(ctx, client.ObjectKey{Namespace: l.here, Name: "workspace-" + ws.Name}, job)
	})
	if !metav1.IsControlledBy(secret, ws) || len(secret.Data) != 2 || string(secret.Data["MODEL"]) != "sesame" || string(secret.Data["MODEL.username"]) != "git" {
		t.Errorf("the Secret of %+v has %d keys", secret.OwnerReferences, len(secret.Data))
	}
	text, err := json.Marshal([]any{job, ws})
	if err != nil || strings.Contains(string(text), "sesame") {
		t.Errorf("%v: a manifest has the credential", err)
	}
	volumes := job.Spec.Template.Spec.Volumes
	from := volumes[len(volumes)-1].Secret
	if from == nil || from.SecretName != secret.Name || len(from.Items) != 2 || from.Items[0].Key != "MODEL" || from.Items[0].Path != "password" || from.Items[1].Path != "username" {
		t.Errorf("%+v", volumes)
	}
}
