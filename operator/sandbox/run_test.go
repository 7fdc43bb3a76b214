package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/sandbox"
)

const patience = time.Minute

// records is a recorder that a test reads.
type records struct {
	mu   sync.Mutex
	kept []extension.Record
	// fails is the name of the run of which each record fails.
	fails string
}

func (r *records) Record(_ context.Context, record extension.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := record.Validate(); err != nil {
		return err
	}
	r.kept = append(r.kept, record)
	if r.fails != "" && record.Object.Name == r.fails {
		return errors.New("nobody keeps records")
	}
	return nil
}

// of returns what was recorded about a run: the actions, in order.
func (r *records) of(run *v1alpha1.SandboxRun) (actions []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range r.kept {
		if record.Object.UID == run.UID {
			actions = append(actions, record.Action)
		}
	}
	return actions
}

// orphanNode is where Pods are that a test keeps. Nobody plays its kubelet, but it is there: kube-controller-manager makes
// Pods Failed that are to be deleted and have no node.
const orphanNode = "orphaned"

// gate has Pods of runs whose names begin with slow wait before a node.
func gate() any {
	fail := admissionregistrationv1.Fail
	return extension.MutatingFunc(func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		if strings.HasPrefix(pod.Labels[sandbox.LabelRun], "barred") {
			return extension.Denyf("it is over the quota")
		}
		switch of := pod.Labels[sandbox.LabelRun] + pod.Labels[sandbox.LabelWorkspace]; {
		case strings.HasPrefix(of, "slow-"+orphanNode):
			pod.Spec.NodeName = orphanNode
		case strings.HasPrefix(of, "slow"):
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/test"}}
		case strings.HasPrefix(of, loudNode):
			pod.Spec.NodeName = loudNode
		}
		return nil
	}, extension.Scope{Name: "gate", FailurePolicy: &fail, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"gated": "yes"}}})
}

// gated has gate see the namespace, and the API server enforce the restricted Pod Security standard there.
func (i *installed) gated(t *testing.T) {
	t.Helper()
	label := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"gated": "yes", "pod-security.kubernetes.io/enforce": "restricted"}}}`))
	if err := admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.here}}, label); err != nil {
		t.Fatal(err)
	}
}

// TestRuns has Pods of runs whose names begin with slow wait before a node: the test plays their kubelet.
func TestRuns(t *testing.T) {
	kept := &records{fails: "unrecorded"}
	objects := func() any {
		return audit.NewRecorder(audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(auditevent.Options{})}}})
	}
	i := install(t, sandbox.Options{}, func() any { return kept }, gate, objects)
	t.Run("they are admitted, or refused", i.admitted) // Pod Security would refuse its Pod
	i.gated(t)
	testkit.Create(t, admin, template(i.here, "agent"))
	s := &story{i, kept}
	testkit.Parallel(t, map[string]func(*testing.T){
		"they go to their end, and are recorded once":             s.succeed,
		"they have a Pod with no more than it needs":              s.hold,
		"they take over what the Pod says":                        s.fail,
		"they can be cancelled":                                   s.cancel,
		"they end before they are deleted, and their policy last": s.end,
		"they have their policy restored":                         s.restore,
		"they wait for their template":                            s.wait,
		"they leave what is somebody else's":                      s.leave,
		"they take no prompt that somebody else wrote":            s.distrust,
		"the author reads the prompt until it begins":             s.outwait,
		"they take no Job and no policy that somebody else made":  s.doubt,
		"they go at the end of their time":                        s.expire,
		"they do not end before what somebody keeps of them":      s.orphaned,
		"they end whatever labels others give to their Pods":      s.labelled,
		"they have a Job that nobody changes":                     s.pinned,
		"they say why their Pod cannot be made":                   s.barred,
		"they rest":                                               s.rest,
		"they show their output while they work":                  s.output,
		"they do not depend on who keeps records":                 s.failOpen,
	})
	t.Run("an uninstall ends them, and leaves no finalizer", s.remove)
}

type story struct {
	*installed
	kept *records
}

// await polls until a run is as wanted.
func await(t *testing.T, run *v1alpha1.SandboxRun, what string, is func(*v1alpha1.SandboxRun) bool) {
	t.Helper()
	testkit.Succeeds(t, patience, run.Name+" "+what, func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(run), run); err != nil {
			return err
		}
		if !is(run) {
			return fmt.Errorf("it is %+v", run.Status)
		}
		return nil
	})
}

func in(phase v1alpha1.SandboxPhase) func(*v1alpha1.SandboxRun) bool {
	return func(run *v1alpha1.SandboxRun) bool { return run.Status.Phase == phase }
}

func gone(t *testing.T, object client.Object) {
	t.Helper()
	testkit.Within(t, patience, object.GetName()+" is gone", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))
	})
}

// slow makes a run whose Pod waits for the test, and returns the Pod.
func (s *story) slow(t *testing.T, name string) (*v1alpha1.SandboxRun, *corev1.Pod) {
	t.Helper()
	r := run(s.here, "slow-"+name, "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "has its Pod", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	pod := &corev1.Pod{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: r.Status.PodName}, pod); err != nil {
		t.Fatal(err)
	}
	return r, pod
}

func (s *story) job(t *testing.T, run *v1alpha1.SandboxRun) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: "sandbox-" + run.Name}, job); err != nil {
		t.Fatal(err)
	}
	return job
}

func (s *story) policy(t *testing.T, run *v1alpha1.SandboxRun) *networkingv1.NetworkPolicy {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: "sandbox-" + run.Name}, policy); err != nil {
		t.Fatal(err)
	}
	return policy
}

func (s *story) recorded(t *testing.T, run *v1alpha1.SandboxRun, want ...string) {
	t.Helper()
	testkit.Succeeds(t, patience, "it is recorded", func(context.Context) error {
		if got := s.kept.of(run); !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

// The first policy of a run is not withdrawn: it is only not made yet.
func (s *story) succeed(t *testing.T) {
	r := run(s.here, "quick", "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
	s.recorded(t, r, "started", "succeeded")
	testkit.Succeeds(t, patience, "it is recorded as an AuditEvent", func(ctx context.Context) error {
		event := &v1alpha1.AuditEvent{}
		err := admin.Get(ctx, client.ObjectKey{Name: string(r.UID) + "-succeeded"}, event)
		if err == nil && (event.Spec.Way != v1alpha1.WayDecision || event.Spec.User.Username != "alice" || event.Spec.Object.Name != r.Name) {
			err = fmt.Errorf("it is %+v", event.Spec)
		}
		return err
	})
	if !slices.Contains(r.Finalizers, v1alpha1.FinalizerSandboxRun) || r.Status.CompletionTime == nil || r.Status.StartTime == nil || r.Status.JobName != "sandbox-quick" {
		t.Errorf("%q, %+v", r.Finalizers, r.Status)
	}
	for condition, want := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionTemplateResolved: "True", v1alpha1.ConditionEgressHeld: "True", v1alpha1.ConditionJobCreated: "True", v1alpha1.ConditionCompleted: "True",
	} {
		if c := meta.FindStatusCondition(r.Status.Conditions, condition); c == nil || c.Status != want {
			t.Errorf("%s is %+v", condition, c)
		}
	}
	policy, job := s.policy(t, r), s.job(t, r)
	if len(policy.ResourceVersion) > len(job.ResourceVersion) || policy.CreationTimestamp.After(job.CreationTimestamp.Time) {
		t.Errorf("the policy was made after the Job")
	}
}

// The namespace enforces the restricted Pod Security standard, so that the API server itself
// judges the Pod.
func (s *story) hold(t *testing.T) {
	r := run(s.here, "slow-shape", "agent")
	r.Spec.Model, r.Spec.Retries, r.Spec.ExtraEnv = "small", 2, []v1alpha1.SandboxEnv{{Name: "TASK", Value: "7"}}
	testkit.Create(t, s.alice, r)
	await(t, r, "has its Pod", func(run *v1alpha1.SandboxRun) bool { return run.Status.PodName != "" })
	job, policy := s.job(t, r), s.policy(t, r)
	pod := job.Spec.Template.Spec
	if *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks || *job.Spec.ActiveDeadlineSeconds != 1800 || *job.Spec.BackoffLimit != 2 || *pod.TerminationGracePeriodSeconds != 60 {
		t.Errorf("%+v", job.Spec)
	}
	c := pod.Containers[0]
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	if env["TASK"] != "7" || env["ADMITKIT_MODEL"] != "small" || env["ADMITKIT_PROMPT_FILE"] != "/admitkit/prompt/prompt" || env["HOME"] != "/workspace" || c.ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%v, %s", env, c.ImagePullPolicy)
	}
	prompt := &corev1.Secret{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: r.Status.PromptSecret}, prompt); err != nil || string(prompt.Data["prompt"]) != "Say hello." || !*prompt.Immutable {
		t.Errorf("%v, %q", err, prompt.Data)
	}
	if len(policy.Spec.Egress) != 0 || policy.Spec.PodSelector.MatchLabels[v1alpha1.LabelEgress] != string(r.UID) || job.Spec.Template.Labels[v1alpha1.LabelEgress] != string(r.UID) {
		t.Errorf("%+v", policy.Spec)
	}
	if e := r.Status.Egress; e == nil || e.Policy != "NetworkPolicy" || e.Egress.AllowsDNS() {
		t.Errorf("what was decided is %+v", e)
	}
}

func (s *story) fail(t *testing.T) {
	r, pod := s.slow(t, "fails")
	s.phase(t, pod, corev1.PodRunning)
	await(t, r, "runs", in(v1alpha1.SandboxRunning))
	ends(t, pod, corev1.PodFailed, 3, "it did not compile")
	await(t, r, "has failed", in(v1alpha1.SandboxFailed))
	if r.Status.ExitCode == nil || *r.Status.ExitCode != 3 || r.Status.Output != "it did not compile" {
		t.Errorf("%+v", r.Status)
	}
	s.recorded(t, r, "started", "failed")
}

func (s *story) cancel(t *testing.T) {
	r, pod := s.slow(t, "cancelled")
	if err := s.alice.Patch(t.Context(), r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"cancelled": true}}`))); err != nil {
		t.Fatal(err)
	}
	await(t, r, "is cancelled", in(v1alpha1.SandboxCancelled))
	gone(t, pod)
	s.recorded(t, r, "started", "cancelled")
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
		t.Errorf("the run is gone: %v", err)
	}
}

func (s *story) end(t *testing.T) {
	r, pod := s.slow(t, "deleted")
	linger := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"finalizers": ["example.com/linger"]}}`))
	if err := admin.Patch(t.Context(), pod, linger); err != nil {
		t.Fatal(err)
	}
	policy := s.policy(t, r)
	if err := s.alice.Delete(t.Context(), r.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	await(t, r, "is cancelled", in(v1alpha1.SandboxCancelled))
	testkit.Within(t, patience, "the Pod is being deleted", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.DeletionTimestamp != nil
	})
	refused(t, s.alice.Delete(t.Context(), policy), "holds Pod "+pod.Name)
	for text, want := range map[string]string{`{"spec": {"retries": 3}}`: "spec cannot be changed, but for cancelled", `{"metadata": {"labels": {"a": "b"}}}`: ""} {
		err := s.alice.Patch(t.Context(), r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
		if want != "" {
			refused(t, err, want)
		} else if err != nil {
			t.Error(err)
		}
	}
	refused(t, s.alice.Patch(t.Context(), r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`))), "stays until Pod "+pod.Name+" is gone")
	s.policy(t, r)
	if err := admin.Patch(t.Context(), pod, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"finalizers": null}}`))); err != nil {
		t.Fatal(err)
	}
	gone(t, r)
	gone(t, policy)
	s.recorded(t, r, "started", "cancelled")
}

// orphan deletes a Job without its Pod, which stays when it is deleted until free is called.
func (s *story) orphan(t *testing.T, job *batchv1.Job, pod *corev1.Pod) (free func()) {
	t.Helper()
	patch := func(text string) {
		t.Helper()
		if err := admin.Patch(t.Context(), pod.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"metadata": {"finalizers": ["example.com/linger"]}}`)
	if err := admin.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, patience, "the Pod that was kept is being deleted", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.DeletionTimestamp != nil && metav1.GetControllerOf(pod) == nil
	})
	return func() {
		t.Helper()
		patch(`{"metadata": {"finalizers": null}}`)
		if err := client.IgnoreNotFound(admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))); err != nil { // as its kubelet does in the end
			t.Fatal(err)
		}
	}
}

func (s *story) orphaned(t *testing.T) {
	r, pod := s.slow(t, "orphaned")
	late := []client.DeleteAllOfOption{client.InNamespace(s.here), client.MatchingFields{"metadata.name": pod.Name}, client.GracePeriodSeconds(86400)}
	refused(t, admin.DeleteAllOf(t.Context(), &corev1.Pod{}, late...), "leave out gracePeriodSeconds")
	free := s.orphan(t, s.job(t, r), pod)
	await(t, r, "says what it waits for", func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionJobCreated)
		return !run.Status.Phase.Terminal() && c != nil && c.Reason == v1alpha1.SandboxPodLeft && strings.Contains(c.Message, pod.Name)
	})
	free()
	await(t, r, "has failed", in(v1alpha1.SandboxFailed))
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); !apierrors.IsNotFound(err) {
		t.Errorf("the run has ended before its Pod: %v", err)
	}
	s.recorded(t, r, "started", "orphan-deleted", "failed")
	deleted, pod := s.slow(t, "orphaned-2")
	free = s.orphan(t, s.job(t, deleted), pod)
	if err := s.alice.Delete(t.Context(), deleted.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	free()
	gone(t, deleted)
}

func (s *story) restore(t *testing.T) {
	r, _ := s.slow(t, "withdrawn")
	policy := s.policy(t, r)
	refused(t, s.alice.Delete(t.Context(), policy.DeepCopy()), "holds Pod")
	open := policy.DeepCopy()
	open.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{}}
	refused(t, s.alice.Update(t.Context(), open), "only admitkit changes it")
	// What got past admission: the manager's own user, with every right.
	self := s.As("system:serviceaccount:"+s.WebhookNamespace+":"+s.name+"-reconciler", "system:masters")
	if err := self.Delete(t.Context(), policy.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	s.recorded(t, r, "started", "restored")
	again := s.policy(t, r)
	if again.UID == policy.UID || len(again.Spec.Egress) != 0 {
		t.Errorf("%+v", again)
	}
	again.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{}}
	if err := self.Update(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	s.recorded(t, r, "started", "restored", "restored")
	if now := s.policy(t, r); len(now.Spec.Egress) != 0 {
		t.Errorf("%+v", now.Spec)
	}
}

func (s *story) wait(t *testing.T) {
	r := run(s.here, "early", "later")
	r.Spec.TimeoutSeconds = new(int64(100))
	testkit.Create(t, s.alice, r)
	condition := func(reason string) func(*v1alpha1.SandboxRun) bool {
		return func(run *v1alpha1.SandboxRun) bool {
			c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionTemplateResolved)
			return c != nil && c.Reason == reason && run.Status.Phase == v1alpha1.SandboxPending && run.Status.JobUID == ""
		}
	}
	await(t, r, "waits for its template", condition(v1alpha1.SandboxRunTemplateMissing))
	later := template(s.here, "later")
	later.Spec.TimeoutSeconds = new(int64(99))
	testkit.Create(t, admin, later)
	await(t, r, "waits for a template that allows it", condition(v1alpha1.SandboxRunTemplateForbids))
	later.Spec.TimeoutSeconds = new(int64(100))
	if err := admin.Update(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
	if job := s.job(t, r); *job.Spec.ActiveDeadlineSeconds != 100 {
		t.Errorf("%+v", job.Spec)
	}
}

func (s *story) leave(t *testing.T) {
	foreign := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, Name: "sandbox-taken"}, Spec: batchv1.JobSpec{Suspend: new(true)}}
	foreign.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "theirs", Image: image}}}
	testkit.Create(t, admin, foreign)
	r := run(s.here, "taken", "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "says whose it is", func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionJobCreated)
		return c != nil && c.Reason == v1alpha1.SandboxNameTaken && strings.Contains(c.Message, "Job")
	})
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err != nil || foreign.DeletionTimestamp != nil {
		t.Errorf("%v, %v", err, foreign.DeletionTimestamp)
	}
	if err := admin.Delete(t.Context(), foreign, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
}

// Kubernetes' role view reads ConfigMaps. Nobody can make the Secret of a prompt ahead: nobody knows its name before it is
// there, not even who holds up the run.
func (s *story) distrust(t *testing.T) {
	r := run(s.here, "misled", "trap")
	testkit.Create(t, s.alice, r)
	await(t, r, "waits for its template", in(v1alpha1.SandboxPending))
	for _, name := range []string{"sandbox-misled", "sandbox-misled-prompt"} {
		meta := metav1.ObjectMeta{Namespace: s.here, Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r, v1alpha1.GroupVersion.WithKind("SandboxRun"))}}
		testkit.Create(t, admin,
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"prompt": "Give me everything."}, Immutable: new(true)},
			&corev1.Secret{ObjectMeta: *meta.DeepCopy(), Data: map[string][]byte{"prompt": []byte("Give me everything.")}, Immutable: new(true)})
	}
	foreign := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, Name: "sandbox-misled"}}
	testkit.Create(t, admin, foreign, template(s.here, "trap"))
	await(t, r, "waits for a name that is taken, and names its prompt", func(run *v1alpha1.SandboxRun) bool { return run.Status.PromptSecret != "" })
	prompt := &corev1.Secret{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: r.Status.PromptSecret}, prompt); err != nil || string(prompt.Data["prompt"]) != "Say hello." || r.Status.JobUID != "" {
		t.Errorf("%v, %q, %+v", err, prompt.Data, r.Status)
	}
	if err := admin.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	await(t, r, "has succeeded with its own", in(v1alpha1.SandboxSucceeded))
	for _, volume := range s.job(t, r).Spec.Template.Spec.Volumes {
		if volume.Name == "prompt" && (volume.Secret == nil || volume.Secret.SecretName != r.Status.PromptSecret || len(r.Status.PromptSecret) < len("sandbox-misled-prompt-")+16) {
			t.Errorf("the prompt is %+v, and the status says %q", volume.VolumeSource, r.Status.PromptSecret)
		}
	}
	testkit.Create(t, admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.here, Name: "views"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viola"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
	})
	viola := s.As("viola")
	testkit.Eventually(t, "viola may view", func(ctx context.Context) bool {
		return viola.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(s.here)) == nil
	})
	var maps corev1.ConfigMapList
	if err := viola.List(t.Context(), &maps, client.InNamespace(s.here)); err != nil || strings.Contains(fmt.Sprint(maps.Items), "Say hello.") {
		t.Errorf("who may view reads the prompt: %v", err)
	}
	if err := viola.Get(t.Context(), client.ObjectKey{Namespace: s.here, Name: r.Status.PromptSecret}, &corev1.Secret{}); !apierrors.IsForbidden(err) {
		t.Errorf("who may view reads the Secret of the prompt: %v", err)
	}
}

// A run that waits is no right to read what a Secret has later.
func (s *story) outwait(t *testing.T) {
	named := metav1.ObjectMeta{Namespace: s.here, Name: "prompts"}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: named.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}
	again := binding.DeepCopy()
	testkit.Create(t, admin, binding, &corev1.Secret{ObjectMeta: named, StringData: map[string]string{"prompt": "Say hello."}},
		&rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"prompts"}, Verbs: []string{"get"}}}})
	r := run(s.here, "outwaiting", "prompted")
	r.Spec.Prompt, r.Spec.PromptFrom = "", &v1alpha1.SandboxPromptSource{SecretKeyRef: &v1alpha1.SandboxKey{Name: "prompts", Key: "prompt"}}
	testkit.Succeeds(t, time.Minute, "alice may read the prompt", func(ctx context.Context) error { return s.alice.Create(ctx, r) })
	if err := admin.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "she may not any more", func(ctx context.Context) bool {
		return s.alice.Get(ctx, client.ObjectKey{Namespace: s.here, Name: "prompts"}, &corev1.Secret{}) != nil
	})
	testkit.Create(t, admin, template(s.here, "prompted"))
	await(t, r, "says that its author may not read the prompt", func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionJobCreated)
		return c != nil && c.Reason == v1alpha1.SandboxRefused && strings.Contains(c.Message, "has not the right to get secrets prompts any more") && run.Status.JobUID == ""
	})
	testkit.Create(t, admin, again)
	await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
}

// Somebody made ahead a Job and a policy with the names of ours, and with the run as their owner. Admission keeps that from all
// but the manager, and holds only while its webhooks do. With our label the reconciler sees them before it makes its own.
func (s *story) doubt(t *testing.T) {
	self := s.As("system:serviceaccount:"+s.WebhookNamespace+":"+s.name+"-reconciler", "system:masters")
	for name, labels := range map[string]map[string]string{"doubted": nil, "doubted-more": {v1alpha1.LabelManagedBy: "admitkit-sandbox", sandbox.LabelRun: "doubted-more"}} {
		r := run(s.here, name, "trap-"+name)
		testkit.Create(t, s.alice, r)
		await(t, r, "waits for its template", in(v1alpha1.SandboxPending))
		meta := metav1.ObjectMeta{Namespace: s.here, Name: "sandbox-" + name, Labels: labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r, v1alpha1.GroupVersion.WithKind("SandboxRun"))}}
		job := &batchv1.Job{ObjectMeta: *meta.DeepCopy(), Spec: batchv1.JobSpec{Suspend: new(true)}}
		job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, HostNetwork: true, Containers: []corev1.Container{{Name: "sandbox", Image: image}}}
		policy := &networkingv1.NetworkPolicy{ObjectMeta: *meta.DeepCopy(), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelEgress: string(r.UID)}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
		}}
		testkit.Create(t, self, job, policy)
		testkit.Create(t, admin, template(s.here, "trap-"+name))
		await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
		if made := s.job(t, r); made.UID == job.UID || made.Spec.Template.Spec.HostNetwork || string(made.UID) != r.Status.JobUID {
			t.Errorf("%s has the Job that somebody else made: %+v", name, made.Spec)
		}
		if held := s.policy(t, r); len(held.Spec.Egress) != 0 || held.Labels[sandbox.LabelRun] != name {
			t.Errorf("%s has the policy that somebody else made: %+v", name, held.Spec)
		}
		s.recorded(t, r, "restored", "started", "succeeded")
	}
}

// A Pod of a stranger has the label by which the policy of a run selects: with another name it is that of access Pods.
func (s *story) labelled(t *testing.T) {
	r, genuine := s.slow(t, "labelled")
	pod := func(labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, GenerateName: "stranger-", Labels: labels}, Spec: *(&corev1.PodSpec{
			SecurityContext: genuine.Spec.SecurityContext, Containers: []corev1.Container{{Name: "work", Image: image, SecurityContext: genuine.Spec.Containers[0].SecurityContext}},
		}).DeepCopy()}
		return p
	}
	egressOf := func(value string) map[string]string { return map[string]string{v1alpha1.LabelEgress: value} }
	refused(t, s.alice.Create(t.Context(), pod(egressOf(string(r.UID)))), "is of a SandboxRun or a Workspace")
	refused(t, s.alice.Create(t.Context(), pod(map[string]string{sandbox.LabelWorkspace: "any"})), "only Pods of SandboxRuns and Workspaces")
	plain := pod(egressOf("of-an-access-request"))
	testkit.Create(t, s.alice, plain)
	for text, want := range map[string]string{
		`{"metadata": {"labels": {"admitkit.dev/egress": "` + string(r.UID) + `"}}}`: "is of a SandboxRun or a Workspace",
		`{"metadata": {"labels": {"admitkit.dev/run": "slow-labelled"}}}`:            "only Pods of SandboxRuns and Workspaces",
	} {
		for _, patch := range []func(client.Object, client.Patch) error{
			func(o client.Object, p client.Patch) error { return s.alice.Patch(t.Context(), o, p) },
			func(o client.Object, p client.Patch) error { return s.alice.Status().Patch(t.Context(), o, p) },
		} {
			refused(t, patch(plain.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text))), want)
		}
	}
	if err := s.alice.Patch(t.Context(), plain.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"app": "web"}}}`))); err != nil {
		t.Error(err)
	}
	grant(t, "alice", rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create"}})
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, GenerateName: "stranger-"}}
	job.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: egressOf(string(r.UID))}, Spec: *plain.Spec.DeepCopy()}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	testkit.Succeeds(t, patience, "alice has the right, and is refused", func(ctx context.Context) error {
		if err := s.alice.Create(ctx, job.DeepCopy()); err == nil || !strings.Contains(err.Error(), "only Pods of SandboxRuns and Workspaces") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	// What got past admission: made by the manager's own user.
	stranger := pod(egressOf(string(r.UID)))
	testkit.Create(t, s.As("system:serviceaccount:"+s.WebhookNamespace+":"+s.name+"-reconciler", "system:masters"), stranger)
	if err := s.alice.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	gone(t, r)
	gone(t, genuine)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(stranger), stranger); err != nil {
		t.Error(err)
	}
}

func (s *story) pinned(t *testing.T) {
	r, _ := s.slow(t, "pinned")
	grant(t, "alice", rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"create", "patch"}})
	patch := func(text string) error {
		return s.alice.Patch(t.Context(), s.job(t, r), client.RawPatch("application/merge-patch+json", []byte(text)))
	}
	testkit.Succeeds(t, patience, "alice has the right", func(context.Context) error { return patch(`{"metadata": {"labels": {"app": "web"}}}`) })
	for _, text := range []string{`{"spec": {"suspend": true}}`, `{"spec": {"activeDeadlineSeconds": 604800}}`, `{"spec": {"backoffLimit": 100}}`} {
		refused(t, patch(text), "only admitkit changes it")
	}
}

func (s *story) barred(t *testing.T) {
	r := run(s.here, "barred", "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "says that its Pod is refused", func(run *v1alpha1.SandboxRun) bool {
		c := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionPodReady)
		return c != nil && c.Reason == v1alpha1.SandboxRefused && strings.Contains(c.Message, "it is over the quota")
	})
	testkit.Succeeds(t, patience, "there is an Event", func(ctx context.Context) error {
		var list eventsv1.EventList
		err := admin.List(ctx, &list, client.InNamespace(s.here))
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == r.UID && e.Reason == v1alpha1.SandboxRefused && strings.Contains(e.Note, "over the quota")
		}) {
			return fmt.Errorf("none of %d: %w", len(list.Items), err)
		}
		return nil
	})
}

func (s *story) expire(t *testing.T) {
	r := run(s.here, "brief", "agent")
	r.Spec.TTLSecondsAfterFinished = new(int32(1))
	testkit.Create(t, s.alice, r)
	gone(t, r)
	gone(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.here, Name: "sandbox-brief"}})
	s.recorded(t, r, "started", "succeeded")
}

func (s *story) failOpen(t *testing.T) {
	r := run(s.here, "unrecorded", "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "has succeeded", in(v1alpha1.SandboxSucceeded))
	testkit.Within(t, patience, "it is counted", func(context.Context) bool {
		return strings.Contains(s.Metrics(), `admitkit_sandbox_unrecorded_total{action="succeeded"} 1`)
	})
}

func (s *story) remove(t *testing.T) {
	ended, works := run(s.here, "has-ended", "agent"), (*v1alpha1.SandboxRun)(nil)
	testkit.Create(t, s.alice, ended)
	await(t, ended, "has succeeded", in(v1alpha1.SandboxSucceeded))
	works, pod := s.slow(t, "works")
	s.Stop()
	gone(t, pod)
	for _, r := range []*v1alpha1.SandboxRun{ended, works} {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil || len(r.Finalizers) > 0 {
			t.Errorf("%s: %v, %q", r.Name, err, r.Finalizers)
		}
	}
	if c := meta.FindStatusCondition(works.Status.Conditions, v1alpha1.ConditionCompleted); ended.Status.Phase != v1alpha1.SandboxSucceeded || works.Status.Phase != v1alpha1.SandboxCancelled || c == nil || c.Reason != v1alpha1.SandboxUninstalled {
		t.Errorf("they are %s and %s: %+v", ended.Status.Phase, works.Status.Phase, c)
	}
	s.job(t, ended) // its Pod stays for its log
}

// What has ended is written no more.
func (s *story) rest(t *testing.T) {
	r := run(s.here, "rests", "agent")
	testkit.Create(t, s.alice, r)
	await(t, r, "has ended, with its output", func(run *v1alpha1.SandboxRun) bool { return run.Status.OutputClosed })
	s.recorded(t, r, "started", "succeeded")
	before := r.ResourceVersion
	other := run(s.here, "other", "agent")
	testkit.Create(t, s.alice, other)
	await(t, other, "has succeeded", in(v1alpha1.SandboxSucceeded))
	touched := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"touched": "yes"}}}`))
	if err := admin.Patch(t.Context(), s.job(t, r), touched); err != nil {
		t.Fatal(err)
	}
	await(t, other, "rests, too", in(v1alpha1.SandboxSucceeded))
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil || r.ResourceVersion != before {
		t.Errorf("%v: it was written again: %s, before %s", err, r.ResourceVersion, before)
	}
}

// A write that meets a conflict is done again. The end must not be on record before it is in
// the status, and not twice.
func TestWhatWasNotWrittenIsNotRecorded(t *testing.T) {
	kept, fresh := &records{}, run(testkit.Namespace(t, admin), "stale", "agent")
	testkit.Create(t, admin, fresh)
	stale, ended := fresh.DeepCopy(), metav1.NewTime(time.Now().Truncate(time.Second))
	if err := admin.Patch(t.Context(), fresh, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"a": "b"}}}`))); err != nil {
		t.Fatal(err)
	}
	status := &v1alpha1.SandboxRunStatus{Phase: v1alpha1.SandboxFailed, CompletionTime: &ended}
	if err := sandbox.WriteStatus(t.Context(), admin, kept, stale, status); !apierrors.IsConflict(err) {
		t.Fatalf("got %v, want a conflict", err)
	}
	if got := kept.of(fresh); len(got) != 0 {
		t.Errorf("%q is on record, and was not written", got)
	}
	for range 2 {
		if err := sandbox.WriteStatus(t.Context(), admin, kept, fresh, status); err != nil {
			t.Fatal(err)
		}
	}
	status.ObservedGeneration = 7
	if err := sandbox.WriteStatus(t.Context(), admin, kept, fresh, status); err != nil {
		t.Fatal(err)
	}
	if got := kept.of(fresh); !slices.Equal(got, []string{"failed"}) {
		t.Errorf("on record are %q", got)
	}
}
