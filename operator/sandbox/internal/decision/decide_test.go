package decision

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// factsOf are those of a run with a Job, held by a policy as it was made.
func factsOf(t *testing.T, change func(*facts.Facts)) *facts.Facts {
	t.Helper()
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u", Finalizers: []string{v1alpha1.FinalizerSandboxRun}}}
	run.Status = v1alpha1.SandboxRunStatus{
		Phase: v1alpha1.SandboxRunning, JobName: "sandbox-b", JobUID: "j", StartTime: &metav1.Time{Time: now},
		Egress: &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}},
	}
	f := &facts.Facts{
		Run: run, StartTimeout: time.Minute, Options: &egress.Options{Mode: egress.ModeOn}, APIServer: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("[2001:db8::1]:6443")},
		Job: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "sandbox-b", UID: "j", CreationTimestamp: metav1.Time{Time: now}}},
	}
	var err error
	if f.Policy, err = f.PolicyOf().Compose(f.APIServer); err != nil {
		t.Fatal(err)
	}
	change(f)
	return f
}

func ended(condition batchv1.JobConditionType) func(*facts.Facts) {
	return func(f *facts.Facts) {
		f.Job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded"}}
	}
}

func terminal(f *facts.Facts) {
	f.Run.Status.Phase, f.Run.Status.CompletionTime = v1alpha1.SandboxSucceeded, &metav1.Time{Time: now.Add(-time.Minute)}
}

// overdue is a run whose time to begin is over.
func overdue(f *facts.Facts) {
	f.Run.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStarted, Status: metav1.ConditionFalse, Reason: v1alpha1.SandboxStarting, LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}}}
}

func timedOut(d *Decision, why string) bool {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionCompleted)
	return d.Status.Phase == v1alpha1.SandboxFailed && !d.Start && c.Reason == v1alpha1.SandboxStartTimeout && strings.Contains(c.Message, why)
}

// pulling is a Pod whose image does not come.
var pulling = &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
	Name: workload.Container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}},
}}}}

func TestWhatFollowsFromTheFacts(t *testing.T) {
	deleted := func(f *facts.Facts) { f.Run.DeletionTimestamp = &metav1.Time{Time: now} }
	for sentence, test := range map[string]struct {
		change func(*facts.Facts)
		is     func(*Decision) bool
	}{
		"a run whose policy is in force needs nothing": {func(*facts.Facts) {}, func(d *Decision) bool { return d.Restore == nil && !d.End && !d.Start && !d.Release }},
		"a policy that is gone was withdrawn":          {func(f *facts.Facts) { f.Policy = nil }, func(d *Decision) bool { return d.Restore.Was == egress.Deleted }},
		"a policy that is not made yet was not": {
			func(f *facts.Facts) {
				f.Policy, f.Job, f.Run.Status.JobUID = nil, nil, ""
				f.Held, f.Plan = f.Run.Status.Egress, &workload.Plan{}
			},
			func(d *Decision) bool { return d.Restore == nil && d.Start },
		},
		"a policy follows the API server": {
			func(f *facts.Facts) { f.APIServer = f.APIServer[:1] }, func(d *Decision) bool { return d.Restore.Was == egress.Behind },
		},
		"a policy stays while the API server has no address": {func(f *facts.Facts) { f.APIServer = nil }, func(d *Decision) bool { return d.Restore == nil }},
		"a policy of a run that has ended is restored as long as there is its Job": {
			func(f *facts.Facts) { terminal(f); f.Policy = nil }, func(d *Decision) bool { return d.Restore.Was == egress.Deleted },
		},
		"a policy of a run that has ended is not restored once its Job is gone": {
			func(f *facts.Facts) { terminal(f); f.Policy, f.Job = nil, nil }, func(d *Decision) bool { return d.Restore == nil && !d.End && !d.Start },
		},
		"the operator's options do not change what was decided": {
			func(f *facts.Facts) { f.Options = &egress.Options{Mode: egress.ModeOff} },
			func(d *Decision) bool { return d.Status.Egress.Policy == "NetworkPolicy" },
		},
		"a Job that is complete is a success": {ended(batchv1.JobComplete), func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxSucceeded && !d.End }},
		"a Job that failed is a failure": {ended(batchv1.JobFailed), func(d *Decision) bool {
			c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionCompleted)
			return d.Status.Phase == v1alpha1.SandboxFailed && c.Reason == "BackoffLimitExceeded"
		}},
		"a Job that is on its way to fail has not": {ended(batchv1.JobFailureTarget), func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxRunning }},
		"a Job that is gone is a failure":          {func(f *facts.Facts) { f.Job, f.Lost = nil, true }, func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxFailed }},
		"a Job that is gone is none as long as somebody keeps a Pod of it": {
			func(f *facts.Facts) { f.Job, f.Lost, f.Left = nil, true, "Pod kept" },
			func(d *Decision) bool {
				c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionJobCreated)
				return d.Status.Phase == v1alpha1.SandboxRunning && d.Poll && c.Reason == v1alpha1.SandboxPodLeft && strings.Contains(c.Message, "Pod kept")
			},
		},
		"a Pod that somebody keeps is held by its policy": {
			func(f *facts.Facts) { terminal(f); f.Job, f.Policy, f.Orphans = nil, nil, []*corev1.Pod{{}} }, func(d *Decision) bool { return d.Restore.Was == egress.Deleted },
		},
		"a run that is deleted waits for a Pod that somebody keeps": {
			func(f *facts.Facts) { deleted(f); f.Job, f.Orphans = nil, []*corev1.Pod{{}} }, func(d *Decision) bool { return !d.Release },
		},
		"a run does not begin beside a Pod that somebody keeps": {
			func(f *facts.Facts) {
				f.Job, f.Run.Status.JobUID, f.Orphans = nil, "", []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}}
				f.Held, f.Plan = f.Run.Status.Egress, &workload.Plan{}
			},
			func(d *Decision) bool { return !d.Start && d.Poll && strings.Contains(d.hindrance(), "Pod kept") },
		},
		"what has ended cannot be cancelled any more": {
			func(f *facts.Facts) { ended(batchv1.JobComplete)(f); f.Run.Spec.Cancelled = true }, func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxSucceeded },
		},
		"what is cancelled loses its Job": {func(f *facts.Facts) { f.Run.Spec.Cancelled = true }, func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxCancelled && d.End }},
		"a Job that is being deleted is not deleted again": {
			func(f *facts.Facts) { f.Run.Spec.Cancelled = true; f.Job.DeletionTimestamp = &metav1.Time{Time: now} }, func(d *Decision) bool { return !d.End },
		},
		"a run that is deleted waits for its Job": {deleted, func(d *Decision) bool { return d.End && !d.Release }},
		"a run that is deleted waits for its Pods": {
			func(f *facts.Facts) { deleted(f); f.Job = nil; f.Pods = []*corev1.Pod{{}} }, func(d *Decision) bool { return !d.Release },
		},
		"a run that is deleted goes after its Pods": {func(f *facts.Facts) { deleted(f); f.Job = nil }, func(d *Decision) bool { return d.Release }},
		"a run is kept until its time to live is over": {
			func(f *facts.Facts) { terminal(f); f.Run.Spec.TTLSecondsAfterFinished = new(int32(61)) }, func(d *Decision) bool { return !d.Discard && d.Next.Equal(now.Add(time.Second)) },
		},
		"a run goes when its time to live is over": {
			func(f *facts.Facts) { terminal(f); f.Run.Spec.TTLSecondsAfterFinished = new(int32(60)) }, func(d *Decision) bool { return d.Discard },
		},
		"a run that has made its Job and does not begin is looked at again at the end of its time": {
			func(*facts.Facts) {}, func(d *Decision) bool {
				return d.Next.Equal(now.Add(time.Minute)) && d.Status.Phase == v1alpha1.SandboxRunning
			},
		},
		"a run whose Pod does not begin in time fails, says why, and loses its Job": {
			func(f *facts.Facts) { overdue(f); f.Pods = []*corev1.Pod{pulling} },
			func(d *Decision) bool { return timedOut(d, "ErrImagePull: no such image") && d.End },
		},
		"a run whose Pod is refused says why": {
			func(f *facts.Facts) { f.Refusal = "exceeded quota" },
			func(d *Decision) bool {
				c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionPodReady)
				return c != nil && c.Reason == v1alpha1.SandboxRefused && strings.Contains(c.Message, "exceeded quota") && d.Poll
			},
		},
		"a run whose Pod is refused fails in time, and says why": {
			func(f *facts.Facts) { overdue(f); f.Refusal = "exceeded quota" }, func(d *Decision) bool { return timedOut(d, "exceeded quota") },
		},
		"a run that has its Workspace and cannot make its Job fails in time": {
			func(f *facts.Facts) {
				overdue(f)
				f.Job, f.Run.Status.JobUID, f.Claimed = nil, "", true
				f.Unresolved = &conditions.Obstacle{Condition: v1alpha1.ConditionTemplateResolved, Reason: v1alpha1.SandboxRunTemplateMissing, Message: "there is no template"}
			},
			func(d *Decision) bool { return timedOut(d, "there is no template") },
		},
		"a run that waits for others waits without an end": {
			func(f *facts.Facts) {
				overdue(f)
				f.Job, f.Run.Status.JobUID = nil, ""
				f.Unresolved = &conditions.Obstacle{Condition: v1alpha1.ConditionTemplateResolved, Reason: v1alpha1.SandboxRunTemplateMissing, Message: "there is no template"}
			},
			func(d *Decision) bool { return !d.Status.Phase.Terminal() && d.Next.IsZero() },
		},
		"a run whose credentials nobody can issue fails at once, and says why": {
			func(f *facts.Facts) {
				f.Job, f.Run.Status, f.Plan = nil, v1alpha1.SandboxRunStatus{}, &workload.Plan{}
				f.Unproxied = &conditions.Obstacle{Condition: v1alpha1.ConditionBrokerReady, Reason: v1alpha1.BrokerNotConfigured, Message: "no broker", Fatal: true}
			},
			func(d *Decision) bool {
				c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionCompleted)
				return d.Status.Phase == v1alpha1.SandboxFailed && c.Reason == v1alpha1.BrokerNotConfigured
			},
		},
		"a run that has begun has all the time of its Job": {
			func(f *facts.Facts) {
				overdue(f)
				f.Pods = []*corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodRunning}}}
			},
			func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxRunning && d.Next.IsZero() },
		},
		"a Job that the status does not name is not the run's yet": {
			func(f *facts.Facts) {
				f.Unproven, f.Run.Status.JobUID, f.Run.Status.JobName = true, "", ""
				f.Held, f.Plan = f.Run.Status.Egress, &workload.Plan{}
				ended(batchv1.JobComplete)(f)
			},
			func(d *Decision) bool { return d.Start && d.Status.JobUID == "" && !d.Status.Phase.Terminal() },
		},
		"a run that is cancelled loses such a Job, too": {
			func(f *facts.Facts) { f.Unproven, f.Run.Status.JobUID, f.Run.Spec.Cancelled = true, "", true },
			func(d *Decision) bool { return d.Status.Phase == v1alpha1.SandboxCancelled && d.End },
		},
		"a run waits where nothing would hold it": {
			func(f *facts.Facts) {
				f.Job, f.Run.Status = nil, v1alpha1.SandboxRunStatus{}
				f.Plan, f.Unheld = &workload.Plan{}, &conditions.Obstacle{Condition: v1alpha1.ConditionEgressHeld, Reason: v1alpha1.ReasonEgressNotEnforced, Message: "nothing", Poll: true}
			},
			func(d *Decision) bool { return !d.Start && d.Poll && d.Status.Phase == v1alpha1.SandboxPending },
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if d := Of(factsOf(t, test.change), now); !test.is(&d) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// A template that changes changes nothing of a run that has begun.
func TestThePolicyIsThatOfTheDecision(t *testing.T) {
	f := factsOf(t, func(f *facts.Facts) { f.Plan = &workload.Plan{Egress: v1alpha1.Egress{Internet: true}}; f.Policy = nil })
	want := Of(f, now).Restore.Want
	rules := want.Object["spec"].(map[string]any)["egress"].([]any)
	if len(rules) != 3 { // names, and both addresses of the API server
		t.Errorf("%v", rules)
	}
}
