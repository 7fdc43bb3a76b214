package sandbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox"
)

const pinned = "example.com/sandbox@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func workspace(namespace, name string, repos ...v1alpha1.WorkspaceRepo) *v1alpha1.Workspace {
	ws := &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if len(repos) > 0 {
		ws.Spec.Seed = &v1alpha1.WorkspaceSeed{Repos: repos, Egress: &v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{DNS: new(false), CIDRs: []v1alpha1.EgressCIDR{{CIDR: "192.0.2.10/32", Ports: []v1alpha1.EgressPort{{Port: 443}}}}}}}
	}
	return ws
}

func TestWorkspaces(t *testing.T) {
	kept, clock, here := &records{}, clocktesting.NewFakePassiveClock(time.Now()), testkit.Namespace(t, admin)
	older := workspace(here, "older", v1alpha1.WorkspaceRepo{URL: "https://alice:hunter2@git.example.com/a"}) // than the webhooks
	testkit.Create(t, admin, older)
	i := install(t, sandbox.Options{SeedImage: pinned, Namespaces: []string{here}, Clock: clock, Collector: sandbox.CollectorOptions{Namespace: "sessions-system"}}, func() any { return kept }, gate)
	i.gated(t)
	grant(t, "alice",
		rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"workspaces", "workspaces/status"}, Verbs: []string{"create", "get", "update", "patch", "delete"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"hers"}, Verbs: []string{"get"}})
	testkit.Create(t, admin, template(i.here, "agent"))
	s := &story{i, kept}
	testkit.Parallel(t, map[string]func(*testing.T){
		"are seeded by a Job that reaches what they name":   s.seeds,
		"fail with their seed, and say so":                  s.seedFails,
		"have one seed at a time, whatever is deleted":      s.seedOrphaned,
		"are had by one run at a time, in order":            s.turns,
		"are not held by a run that is gone":                s.goneHolder,
		"are judged again if they are older than the rules": func(t *testing.T) { s.older(t, older) },
		"are admitted":                     s.workspaceAdmission,
		"keep who has them over a restart": s.restarted,
	})
	// The time of all runs passes.
	t.Run("are not held by a run that does not begin", func(t *testing.T) { s.overdue(t, clock) })
	t.Run("lose their finalizer with the installation", s.removed)
}

func (s *story) older(t *testing.T, ws *v1alpha1.Workspace) {
	awaitWorkspace(t, ws, "has failed", func(s *v1alpha1.WorkspaceStatus) bool { return s.Phase == v1alpha1.WorkspaceFailed })
	c := meta.FindStatusCondition(ws.Status.Conditions, v1alpha1.ConditionSeeded)
	if c == nil || c.Reason != v1alpha1.WorkspaceSeedRejected || !strings.Contains(c.Message, "spec.seed.repos[0].url: has a password in it") || strings.Contains(c.Message, "hunter2") {
		t.Errorf("%+v", c)
	}
	err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: "workspace-older"}, &batchv1.Job{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("there is a Job that fetches it: %v", err)
	}
}

func (s *story) workspaceAdmission(t *testing.T) {
	type repo = v1alpha1.WorkspaceRepo
	of := func(url string) *v1alpha1.Workspace { return workspace(s.here, "asked", repo{URL: url}) }
	with := func(change func(*v1alpha1.Workspace)) *v1alpha1.Workspace {
		ws := of("https://git.example.com/a")
		change(ws)
		return ws
	}
	secret := func(name string) *v1alpha1.WorkspaceSecret { return &v1alpha1.WorkspaceSecret{Name: name} }
	type ws = v1alpha1.Workspace
	for sentence, test := range map[string]struct {
		object *ws
		want   string
	}{
		"without a seed":        {workspace(s.here, "asked"), ""},
		"https":                 {of("https://git.example.com/a"), ""},
		"http":                  {of("http://git.example.com/a"), "only https and ssh"},
		"a password in the URL": {of("https://me:hunter2@git.example.com/a"), "has a password in it"},
		"a host of the cluster": {of("https://git.default.svc/a"), "internal to a cluster"},
		"a host of one label":   {of("https://git/a"), "has only one label"},
		"an address":            {of("https://169.254.169.254/a"), "is an address"},
		"ssh without a key":     {of("git@git.example.com:a"), "ssh needs a Secret"},
		"ssh with her key": {with(func(w *ws) {
			w.Spec.Seed.Repos[0] = repo{URL: "git@git.example.com:a", CredentialsFrom: secret("hers")}
		}), ""},
		"a lease and a Secret": {with(func(w *ws) {
			w.Spec.Seed.Repos[0].Credential, w.Spec.Seed.Repos[0].CredentialsFrom = "git", secret("hers")
		}), "spec.seed.repos[0].credential: cannot be set with credentialsFrom: leave one of them out"},
		"a lease for ssh": {with(func(w *ws) {
			w.Spec.Seed.Repos[0] = repo{URL: "git@git.example.com:a", Credential: "git"}
		}), "spec.seed.repos[0].credential: a proxy sets it in a header, and ssh needs keys"},
		"a lease without a broker": {with(func(w *ws) {
			w.Spec.Seed.Repos = []repo{{URL: "https://git.example.com/a", Path: "a"}, {URL: "https://git.example.com/b", Path: "b", Credential: "git"}}
		}), "spec.seed.repos[1].credential: the controller has no broker: let the operator set --broker-namespace"},
		"names, without proxies": {with(func(w *ws) { w.Spec.Seed.Egress = naming("git.example.com") }), "spec.seed.egress.hosts: the controller makes no proxies"},
		"another's Secret":       {with(func(w *ws) { w.Spec.Seed.Repos[0].CredentialsFrom = secret("others") }), `"alice" has not the right to get secrets`},
		"another's ConfigMap":    {with(func(w *ws) { w.Spec.Seed.CAFrom = &v1alpha1.SandboxKey{Name: "others", Key: "ca.crt"} }), `"alice" has not the right to get configmaps`},
		"a path that climbs":     {with(func(w *ws) { w.Spec.Seed.Repos[0].Path = "a/../.." }), "repos[0].path: must be relative"},
		"paths in each other": {with(func(w *ws) {
			w.Spec.Seed.Repos = []repo{{URL: "https://git.example.com/a", Path: "a"}, {URL: "https://git.example.com/b", Path: "a/b/"}}
		}), "lie in each other"},
		"several without a path": {with(func(w *ws) {
			w.Spec.Seed.Repos = append(w.Spec.Seed.Repos, repo{URL: "https://git.example.com/b", Path: "b"})
		}), "needs a path"},
		"too many": {with(func(w *ws) {
			w.Spec.Seed.Repos = nil
			for n := range 17 {
				w.Spec.Seed.Repos = append(w.Spec.Seed.Repos, repo{URL: "https://git.example.com/a", Path: fmt.Sprint(n)})
			}
		}), "must have at most 16 items"},
		"no size at all":                 {with(func(w *ws) { w.Spec.Storage.Size = amount(t, "0") }), "storage.size"},
		"a depth below a commit":         {with(func(w *ws) { w.Spec.Seed.Repos[0].Ref, w.Spec.Seed.Repos[0].Depth = strings.Repeat("a", 40), 1 }), "depth cannot be set with a commit"},
		"an option for a ref":            {with(func(w *ws) { w.Spec.Seed.Repos[0].Ref = "--upload-pack=x" }), "ref"},
		"the internet, without ranges":   {with(func(w *ws) { w.Spec.Seed.Egress = &v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{Internet: true}} }), "spec.seed.egress.internet"},
		"where nothing runs SandboxRuns": {with(func(w *ws) { w.Namespace = s.elsewhere }), "nothing runs SandboxRuns there"},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := s.alice.Create(t.Context(), test.object, client.DryRunAll)
			if test.want != "" {
				refused(t, err, test.want)
			} else if err != nil {
				t.Error(err)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the refusal has the password: %v", err)
			}
		})
	}
	// bob may make Workspaces and runs, but no templates.
	write := []string{"create", "get", "patch"}
	grant(t, "bob", rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"workspaces"}, ResourceNames: []string{"bobs"}, Verbs: write},
		rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"workspaces", "sandboxruns"}, Verbs: []string{"create"}})
	added, err := server.AddUser("bob")
	if err != nil {
		t.Fatal(err)
	}
	bob := testkit.Client(t, added, scheme)
	refused(t, bob.Create(t.Context(), of("https://git.example.com/a"), client.DryRunAll), `"bob" has not the right to create sandboxruntemplates`)
	r := run(s.here, "asked", "agent")
	r.Spec.WorkspaceRef = &v1alpha1.SandboxWorkspaceRef{Name: "alices"}
	refused(t, bob.Create(t.Context(), r, client.DryRunAll), `"bob" has not the right to get workspaces`)
}

// awaitWorkspace polls until a Workspace is as wanted.
func awaitWorkspace(t *testing.T, ws *v1alpha1.Workspace, what string, is func(*v1alpha1.WorkspaceStatus) bool) {
	t.Helper()
	testkit.Succeeds(t, patience, ws.Name+" "+what, func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(ws), ws); err != nil {
			return err
		}
		if !is(&ws.Status) {
			return fmt.Errorf("it is %+v", ws.Status)
		}
		return nil
	})
}

func active(s *v1alpha1.WorkspaceStatus) bool { return s.Phase == v1alpha1.WorkspaceActive }

func (s *story) seeds(t *testing.T) {
	ws := workspace(s.here, "seeded", v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a", Ref: "main", Path: "src/a", CredentialsFrom: &v1alpha1.WorkspaceSecret{Name: "hers"}})
	testkit.Create(t, s.alice, ws)
	awaitWorkspace(t, ws, "is active", active)
	of := client.ObjectKey{Namespace: s.here, Name: "workspace-seeded"}
	job, policy, claim := &batchv1.Job{}, &networkingv1.NetworkPolicy{}, &corev1.PersistentVolumeClaim{}
	for _, object := range []client.Object{job, policy, claim} {
		if err := admin.Get(t.Context(), of, object); err != nil || !metav1.IsControlledBy(object, ws) {
			t.Fatalf("%T: %v, %+v", object, err, object.GetOwnerReferences())
		}
	}
	pod := job.Spec.Template
	if policy.Spec.PodSelector.MatchLabels[v1alpha1.LabelEgress] != string(ws.UID) || pod.Labels[v1alpha1.LabelEgress] != string(ws.UID) || pod.Labels[sandbox.LabelRun] != "" ||
		len(policy.Spec.Egress) != 1 || policy.Spec.Egress[0].To[0].IPBlock.CIDR != "192.0.2.10/32" {
		t.Errorf("%+v, %+v", policy.Spec, pod.Labels)
	}
	c := pod.Spec.Containers[0]
	if c.Image != pinned || c.ImagePullPolicy != corev1.PullIfNotPresent || c.Args[0] != "seed" || *pod.Spec.AutomountServiceAccountToken ||
		!strings.Contains(c.Env[1].Value, `{"url":"https://git.example.com/a","ref":"main","path":"src/a","credentials":"/admitkit/credentials/0"}`) {
		t.Errorf("%+v", c)
	}
	if claim.Spec.Resources.Requests.Storage().String() != "1Gi" || claim.Spec.AccessModes[0] != corev1.ReadWriteOnce {
		t.Errorf("%+v", claim.Spec)
	}
	refused(t, s.alice.Patch(t.Context(), ws.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"storage": {"size": "2Gi"}}}`))), "cannot be changed")
	status := ws.DeepCopy()
	status.Status.ActiveRun = &v1alpha1.WorkspaceHolder{Name: "mine", UID: "1"}
	refused(t, s.alice.Status().Update(t.Context(), status), "only admitkit writes it")
	testkit.Create(t, s.alice, s.inWorkspace("in-seeded", "seeded"))
	r := run(s.here, "in-seeded", "agent")
	await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
	if v := s.job(t, r).Spec.Template.Spec.Volumes[0]; v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ClaimName != "workspace-seeded" {
		t.Errorf("the run mounts %+v", v)
	}
	// The recorder of a run reaches the collector, and nobody gets into a seed.
	rules := s.policy(t, r).Spec.Egress
	if len(rules) != 1 || len(rules[0].To) != 1 || rules[0].To[0].NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "sessions-system" || len(rules[0].Ports) != 1 || rules[0].Ports[0].Port.IntValue() != 8444 {
		t.Errorf("besides the collector the run reaches %+v", rules)
	}
}

// failedSeeds is how many failed, in this process.
func failedSeeds(s *story) string {
	_, after, _ := strings.Cut(s.Metrics(), `admitkit_sandbox_seed_seconds_count{phase="Failed"} `)
	count, _, _ := strings.Cut(after, "\n")
	return count
}

// The Pod of the seed waits for the test, which withdraws its policy, and then has it fail.
func (s *story) seedFails(t *testing.T) {
	before := failedSeeds(s)
	ws := workspace(s.here, "slow-seed", v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a"})
	ws.Spec.Seed.TimeoutSeconds = new(int64(3600))
	testkit.Create(t, s.alice, ws)
	var pods corev1.PodList
	testkit.Within(t, patience, "it has its Pod", func(ctx context.Context) bool {
		return admin.List(ctx, &pods, client.InNamespace(s.here), client.MatchingLabels{sandbox.LabelWorkspace: "slow-seed"}) == nil && len(pods.Items) == 1
	})
	r := s.inWorkspace("waits-for-seed", "slow-seed")
	testkit.Create(t, s.alice, r)
	await(t, r, "waits for the seed", waitsFor(v1alpha1.WorkspaceNotReady, "is Seeding"))
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, Name: "workspace-slow-seed"}}
	refused(t, s.alice.Delete(t.Context(), policy.DeepCopy()), "holds Pod")
	refused(t, s.alice.Patch(t.Context(), pods.Items[0].DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"app": "web"}}}`))), "nobody can change them")
	self := s.As("system:serviceaccount:"+s.WebhookNamespace+":"+s.name+"-reconciler", "system:masters")
	if err := self.Delete(t.Context(), policy.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, patience, "the policy is back", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(policy), policy) == nil
	})
	ends(t, &pods.Items[0], corev1.PodFailed, 1, "repos[0]: repository not found")
	awaitWorkspace(t, ws, "has failed", func(s *v1alpha1.WorkspaceStatus) bool { return s.Phase == v1alpha1.WorkspaceFailed })
	c := meta.FindStatusCondition(ws.Status.Conditions, v1alpha1.ConditionSeeded)
	testkit.Within(t, patience, "it is measured", func(context.Context) bool {
		return failedSeeds(s) != before
	})
	if c == nil || c.Reason != v1alpha1.WorkspaceSeedFailed || !strings.Contains(c.Message, "repository not found") {
		t.Errorf("%+v", c)
	}
	await(t, r, "says that the seed failed", waitsFor(v1alpha1.WorkspaceNotReady, "repository not found"))
}

// seedPod returns the Pod of a seed when it has one.
func (s *story) seedPod(t *testing.T, ws string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	testkit.Within(t, patience, "the seed has its Pod", func(ctx context.Context) bool {
		return admin.List(ctx, &pods, client.InNamespace(s.here), client.MatchingLabels{sandbox.LabelWorkspace: ws}) == nil && len(pods.Items) == 1
	})
	return &pods.Items[0]
}

// The Pod that somebody keeps from the deletion of its Job has the volume, and what is on lease.
func (s *story) seedOrphaned(t *testing.T) {
	ws := workspace(s.here, "slow-orphaned", v1alpha1.WorkspaceRepo{URL: "https://git.example.com/a"})
	testkit.Create(t, s.alice, ws)
	waits := func(pod *corev1.Pod) {
		t.Helper()
		awaitWorkspace(t, ws, "waits for the Pod that was kept", func(s *v1alpha1.WorkspaceStatus) bool {
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSeeded)
			return s.Phase == v1alpha1.WorkspaceSeeding && c != nil && c.Reason == v1alpha1.SandboxPodLeft && strings.Contains(c.Message, pod.Name)
		})
	}
	pod, job := s.seedPod(t, ws.Name), &batchv1.Job{}
	of := client.ObjectKey{Namespace: s.here, Name: "workspace-slow-orphaned"}
	if err := admin.Get(t.Context(), of, job); err != nil {
		t.Fatal(err)
	}
	free := s.orphan(t, job.DeepCopy(), pod)
	waits(pod)
	if err := admin.Get(t.Context(), of, &batchv1.Job{}); !apierrors.IsNotFound(err) {
		t.Errorf("another seeds beside Pod %s: %v", pod.Name, err)
	}
	free()
	awaitWorkspace(t, ws, "is seeded by another Job", func(s *v1alpha1.WorkspaceStatus) bool { return s.SeedJobUID != string(job.UID) })
	testkit.Within(t, patience, "it is on record", func(context.Context) bool {
		s.kept.mu.Lock()
		defer s.kept.mu.Unlock()
		return slices.ContainsFunc(s.kept.kept, func(record extension.Record) bool {
			return record.Object.UID == ws.UID && record.Action == "orphan-deleted" && record.Pod.UID == pod.UID
		})
	})
	pod = s.seedPod(t, ws.Name)
	if err := admin.Get(t.Context(), of, job); err != nil {
		t.Fatal(err)
	}
	free = s.orphan(t, job, pod)
	if err := s.alice.Delete(t.Context(), ws.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	awaitWorkspace(t, ws, "is not deleted before it", func(s *v1alpha1.WorkspaceStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionWorkspaceReady)
		return s.Phase == v1alpha1.WorkspaceTerminating && c != nil && strings.Contains(c.Message, pod.Name)
	})
	free()
	gone(t, ws)
}

func (s *story) inWorkspace(name, workspace string) *v1alpha1.SandboxRun {
	r := run(s.here, name, "agent")
	r.Spec.WorkspaceRef = &v1alpha1.SandboxWorkspaceRef{Name: workspace}
	return r
}

func waitsFor(reason, text string) func(*v1alpha1.SandboxRun) bool {
	return func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionWorkspaceBound)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == reason && strings.Contains(c.Message, text) && run.Status.JobUID == ""
	}
}

func (s *story) cancelRun(t *testing.T, r *v1alpha1.SandboxRun) {
	t.Helper()
	if err := s.alice.Patch(t.Context(), r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"cancelled": true}}`))); err != nil {
		t.Fatal(err)
	}
}

func (s *story) turns(t *testing.T) {
	first, second, third := s.inWorkspace("slow-1", "shared"), s.inWorkspace("slow-2", "shared"), s.inWorkspace("slow-3", "shared")
	testkit.Create(t, s.alice, first)
	await(t, first, "waits for its Workspace", waitsFor(v1alpha1.WorkspaceMissing, "there is no Workspace shared"))
	ws := workspace(s.here, "shared")
	testkit.Create(t, s.alice, ws)
	started := func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" }
	await(t, first, "has its turn", started)
	testkit.Create(t, s.alice, second)
	await(t, second, "waits", waitsFor(v1alpha1.WorkspaceBusy, "run slow-1 has Workspace shared; this one is number 1"))
	testkit.Create(t, s.alice, third)
	await(t, third, "waits", waitsFor(v1alpha1.WorkspaceBusy, "number 2"))
	s.cancelRun(t, first)
	await(t, second, "has its turn", started)
	await(t, third, "moves up", waitsFor(v1alpha1.WorkspaceBusy, "run slow-2 has Workspace shared; this one is number 1"))
	pod := &corev1.Pod{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: first.Status.PodName}, pod); err == nil {
		t.Errorf("Pod %s of the run before is still there", pod.Name)
	}
	if err := s.alice.Delete(t.Context(), ws); err != nil {
		t.Fatal(err)
	}
	awaitWorkspace(t, ws, "says for whom it waits", func(s *v1alpha1.WorkspaceStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionWorkspaceReady)
		return s.Phase == v1alpha1.WorkspaceTerminating && c != nil && c.Reason == v1alpha1.WorkspaceDeletionBlocked && strings.Contains(c.Message, "slow-2")
	})
	testkit.Succeeds(t, patience, "there is an Event", func(ctx context.Context) error {
		var list eventsv1.EventList
		err := admin.List(ctx, &list, client.InNamespace(s.here))
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == v1alpha1.WorkspaceDeletionBlocked && e.Regarding.Name == "shared" {
				return nil
			}
		}
		return fmt.Errorf("none of %d: %w", len(list.Items), err)
	})
	refused(t, s.alice.Patch(t.Context(), ws.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`))), "stays until Pod")
	await(t, third, "is not given it", waitsFor(v1alpha1.WorkspaceNotReady, "Terminating"))
	s.cancelRun(t, second)
	gone(t, ws)
	await(t, third, "says that it is gone", waitsFor(v1alpha1.WorkspaceMissing, "there is no Workspace shared"))
}

func (s *story) goneHolder(t *testing.T) {
	ws := workspace(s.here, "abandoned")
	testkit.Create(t, s.alice, ws)
	for range 2 { // another run of the same name, too
		r := s.inWorkspace("slow-gone", "abandoned")
		testkit.Create(t, s.alice, r)
		await(t, r, "has its turn", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
		if err := s.alice.Delete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		gone(t, r)
	}
	awaitWorkspace(t, ws, "is free", func(s *v1alpha1.WorkspaceStatus) bool { return s.ActiveRun == nil && s.TotalRuns == 2 })
}

func (s *story) overdue(t *testing.T, clock *clocktesting.FakePassiveClock) {
	ws, first, second := workspace(s.here, "awaited"), s.inWorkspace("slow-overdue", "awaited"), s.inWorkspace("in-time", "awaited")
	testkit.Create(t, s.alice, ws, first)
	await(t, first, "has its turn, and a Pod that is not scheduled", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	testkit.Create(t, s.alice, second)
	await(t, second, "waits", waitsFor(v1alpha1.WorkspaceBusy, "run slow-overdue has Workspace awaited"))
	clock.SetTime(clock.Now().Add(sandbox.DefaultStartTimeout))
	touch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"example.com/touched": "yes"}}}`))
	if err := admin.Patch(t.Context(), first.DeepCopy(), touch); err != nil {
		t.Fatal(err)
	}
	await(t, first, "has failed", in(v1alpha1.SandboxFailed))
	if c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionCompleted); c.Reason != v1alpha1.SandboxStartTimeout || !strings.Contains(c.Message, "did not begin within 15m0s") {
		t.Errorf("%+v", c)
	}
	await(t, second, "has its turn, and succeeds", in(v1alpha1.SandboxSucceeded))
}

// What the reconciler would find after a restart at the worst moment: a Workspace that a run has which is gone.
func (s *story) restarted(t *testing.T) {
	ws := workspace(s.here, "kept")
	testkit.Create(t, s.alice, ws)
	awaitWorkspace(t, ws, "is active", active)
	self := s.As("system:serviceaccount:"+s.WebhookNamespace+":"+s.name+"-reconciler", "system:masters")
	first := s.inWorkspace("slow-kept", "kept")
	testkit.Create(t, s.alice, first)
	await(t, first, "has its turn", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	before := unstructuredOf(t, ws) // older than the turn: what a manager writes that has not seen it
	stolen := before.DeepCopy()
	stolen.Object["status"].(map[string]any)["activeRun"] = map[string]any{"name": "thief", "uid": "2"}
	if err := self.Status().Patch(t.Context(), stolen, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict: what was written meanwhile was overwritten", err)
	}
	s.cancelRun(t, first)
	awaitWorkspace(t, ws, "is free", func(s *v1alpha1.WorkspaceStatus) bool { return s.ActiveRun == nil })
	testkit.ChangeStatus(t, self, unstructuredOf(t, ws), func(ws *unstructured.Unstructured) {
		ws.Object["status"].(map[string]any)["activeRun"] = map[string]any{"name": "never-was", "uid": "3"}
	})
	awaitWorkspace(t, ws, "is taken back", func(s *v1alpha1.WorkspaceStatus) bool { return s.ActiveRun == nil })
}

func unstructuredOf(t *testing.T, ws *v1alpha1.Workspace) *unstructured.Unstructured {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ws)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Workspace"))
	return u
}

func (s *story) removed(t *testing.T) {
	ws := workspace(s.here, "left")
	testkit.Create(t, s.alice, ws)
	awaitWorkspace(t, ws, "is active", active)
	s.Stop()
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(ws), ws); err != nil || len(ws.Finalizers) > 0 {
		t.Errorf("%v, %q", err, ws.Finalizers)
	}
}
