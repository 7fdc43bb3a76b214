package sandbox_test

import (
	"context"
	"encoding/base64"
	"slices"
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
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// borrows is a Workspace whose seed needs what the policy of templates calls git.
func (l *leased) borrows(t *testing.T, name string) *v1alpha1.Workspace {
	t.Helper()
	ws := workspace(l.here, name, v1alpha1.WorkspaceRepo{URL: "https://api.example.com/a", Credential: "git"})
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

// proxyOf is the Secret of the proxy of a seed.
func (l *leased) proxyOf(ws *v1alpha1.Workspace) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: "workspace-" + ws.Name + "-proxy"}}
}

// borrowed is a client of the broker as the proxy of a seed that fetches has it, which has its credential on lease.
func (l *leased) borrowed(t *testing.T, ws *v1alpha1.Workspace) *protocol.Client {
	t.Helper()
	secret := l.proxyOf(ws)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	asker := l.askAs(t, l.seedPod(t, ws.Name), secret.Data["broker-ca.crt"])
	issued, err := asker.Issue(t.Context(), protocol.IssueRequest{Name: "git"})
	if err != nil || issued.Header == nil || issued.Header.Value != "Basic "+base64.StdEncoding.EncodeToString([]byte("x-access-token:open")) {
		t.Fatalf("%v, %+v", err, issued)
	}
	if leases := l.leases(t, ws); len(leases) != 1 || leases[0].Spec.Run.Kind != v1alpha1.LeaseOfWorkspace || leases[0].Spec.Pod == nil {
		t.Errorf("%+v", leases)
	}
	return asker
}

// returned expects that nothing is left of what a seed had.
func (l *leased) returned(t *testing.T, ws *v1alpha1.Workspace) {
	t.Helper()
	gone(t, l.proxyOf(ws))
	testkit.Within(t, patience, "its leases are revoked", func(context.Context) bool { return len(l.leases(t, ws)) == 0 })
}

// lenderOf is a policy that lends to the seeds of Workspaces.
func (l *leased) lenderOf(workspaces string) *v1alpha1.BrokerPolicy {
	lender := policyOf(l.here, "lender", "")
	lender.Spec.AppliesToTemplates, lender.Spec.AppliesToWorkspaces, lender.Spec.Interception = nil, []string{workspaces}, v1alpha1.BrokerInterception{}
	lender.Spec.Grants.Credentials = lender.Spec.Grants.Credentials[1:]
	lender.Spec.Grants.Credentials[0].Delivery.ProxyInjected.BasicUser = "x-access-token"
	return lender
}

func (l *leased) seeded(t *testing.T) {
	grant(t, "alice", rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"workspaces"}, Verbs: []string{"create", "get", "delete"}})
	ws := l.borrows(t, "lent-1")
	awaitWorkspace(t, ws, "waits: what its policy gives to templates is not for Workspaces", func(s *v1alpha1.WorkspaceStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionCredentialsReady)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.CredentialsNotGranted && s.SeedJobUID == "" &&
			strings.Contains(c.Message, "git is granted by none: add lent-1 to spec.appliesToWorkspaces of coders, which grants it")
	})
	lender := l.lenderOf("lent-*")
	testkit.Create(t, admin, lender)
	if out, err := server.Kubectl(t.Context(), nil, "-n", l.here, "get", "bpol", "lender").CombinedOutput(); err != nil || !strings.Contains(string(out), "WORKSPACES") || !strings.Contains(string(out), "lent-*") {
		t.Errorf("kubectl does not print to which Workspaces it applies: %v: %s", err, out)
	}
	awaitWorkspace(t, ws, "fetches", func(s *v1alpha1.WorkspaceStatus) bool { return s.SeedJobUID != "" })
	l.checkProxied(t, ws)
	asker := l.borrowed(t, ws)
	l.endSeed(t, ws, corev1.PodSucceeded, "")
	awaitWorkspace(t, ws, "is active", active)
	l.returned(t, ws)
	if _, err := asker.Egress(t.Context()); err == nil {
		t.Error("the broker answers the Pod of a seed that has ended")
	}
	failing := l.fetches(t, "lent-2")
	l.borrowed(t, failing)
	l.endSeed(t, failing, corev1.PodFailed, "who are you?")
	awaitWorkspace(t, failing, "has failed", func(s *v1alpha1.WorkspaceStatus) bool { return s.Phase == v1alpha1.WorkspaceFailed })
	l.returned(t, failing)
	deleted := l.fetches(t, "lent-3")
	l.borrowed(t, deleted)
	if err := l.alice.Delete(t.Context(), deleted.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	gone(t, deleted)
	l.returned(t, deleted)
	testkit.Create(t, admin, l.proxyOf(workspace(l.here, "lent-4")))
	taken := l.borrows(t, "lent-4")
	awaitWorkspace(t, taken, "says that the name of its Secret is taken", func(s *v1alpha1.WorkspaceStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSeeded)
		return c != nil && c.Reason == v1alpha1.SandboxNameTaken && s.SeedJobUID == ""
	})
	l.seedListed(t)
}

// checkProxied expects the proxy beside the seed, which has nothing of it but the certificate of its authority.
func (l *leased) checkProxied(t *testing.T, ws *v1alpha1.Workspace) {
	t.Helper()
	job, secret := &batchv1.Job{}, l.proxyOf(ws)
	for _, object := range []client.Object{job, secret} {
		key := client.ObjectKeyFromObject(secret)
		if object == client.Object(job) {
			key.Name = "workspace-" + ws.Name
		}
		if err := admin.Get(t.Context(), key, object); err != nil || !metav1.IsControlledBy(object, ws) {
			t.Fatalf("%v: %+v", err, object.GetOwnerReferences())
		}
	}
	pod := job.Spec.Template.Spec
	if e := ws.Status.Egress; ws.Status.Interception != v1alpha1.InterceptionTransparent || e.Broker == nil || len(e.Hosts) > 0 || !e.Egress.Internet || argument(&pod, "broker-url") == "" || argument(&pod, "hosts") != "" {
		t.Errorf("%s, %+v", ws.Status.Interception, e)
	}
	l.checkAuthority(t, secret)
	var mounts []string
	for _, m := range pod.Containers[0].VolumeMounts {
		mounts = append(mounts, m.Name)
	}
	if !slices.Equal(mounts, []string{"workspace", "tmp", "ca"}) || slices.ContainsFunc(pod.Containers[0].Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil }) {
		t.Errorf("the seed has %q, %+v", mounts, pod.Containers[0].Env)
	}
}

// seedListed has a seed with names alone, which asks no broker.
func (l *leased) seedListed(t *testing.T) {
	unlisted, private := workspace(l.here, "unlisted", v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a"}), workspace(l.here, "lent-private", v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a"})
	unlisted.Spec.Seed.Egress = naming("other.example.com")
	refused(t, admin.Create(t.Context(), unlisted, client.DryRunAll), "spec.seed.repos[0].url: egress.hosts does not list git.example.com")
	private.Spec.Seed.CAFrom = &v1alpha1.SandboxKey{Name: "ca", Key: "ca.crt"}
	refused(t, admin.Create(t.Context(), private, client.DryRunAll), "spec.seed.caFrom: the seed has a proxy, which verifies its servers")
	ws := workspace(l.here, listedNode+"-seed", v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a"})
	ws.Spec.Seed.Egress = naming("git.example.com")
	testkit.Create(t, admin, ws)
	awaitWorkspace(t, ws, "fetches", func(s *v1alpha1.WorkspaceStatus) bool { return s.SeedJobUID != "" })
	job := &batchv1.Job{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: l.here, Name: "workspace-" + ws.Name}, job); err != nil {
		t.Fatal(err)
	}
	if e, pod := ws.Status.Egress, &job.Spec.Template.Spec; e.Broker != nil || len(e.Hosts) != 1 || argument(pod, "broker-url") != "" || argument(pod, "hosts") != `[{"host":"git.example.com"}]` {
		t.Errorf("%+v, %+v", e, pod.InitContainers)
	}
	l.endSeed(t, ws, corev1.PodSucceeded, "")
	awaitWorkspace(t, ws, "is active", active)
	gone(t, l.proxyOf(ws))
}
