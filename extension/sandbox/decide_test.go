package sandbox

import (
	"net/netip"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/egress"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// factsOf are those of a run with a Job, held by a policy as it was made.
func factsOf(t *testing.T, change func(*facts)) *facts {
	t.Helper()
	run := &v1alpha1.HarnessRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u", Finalizers: []string{v1alpha1.FinalizerHarnessRun}}}
	run.Status = v1alpha1.HarnessRunStatus{
		Phase: v1alpha1.HarnessRunning, JobName: "harness-b", JobUID: "j", StartTime: &metav1.Time{Time: now},
		Egress: &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}},
	}
	f := &facts{
		run: run, options: &egress.Options{Mode: egress.ModeOn}, apiServer: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("[2001:db8::1]:6443")},
		job: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "harness-b", UID: "j", CreationTimestamp: metav1.Time{Time: now}}},
	}
	var err error
	if f.policy, err = f.compose(run.Status.Egress, f.apiServer); err != nil {
		t.Fatal(err)
	}
	change(f)
	return f
}

func ended(condition batchv1.JobConditionType) func(*facts) {
	return func(f *facts) {
		f.job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded"}}
	}
}

func terminal(f *facts) {
	f.run.Status.Phase, f.run.Status.CompletionTime = v1alpha1.HarnessSucceeded, &metav1.Time{Time: now.Add(-time.Minute)}
}

func TestWhatFollowsFromTheFacts(t *testing.T) {
	deleted := func(f *facts) { f.run.DeletionTimestamp = &metav1.Time{Time: now} }
	for sentence, test := range map[string]struct {
		change func(*facts)
		is     func(*decision) bool
	}{
		"a run whose policy is in force needs nothing": {func(*facts) {}, func(d *decision) bool { return d.restore == nil && !d.end && !d.start && !d.release }},
		"a policy that is gone was withdrawn":          {func(f *facts) { f.policy = nil }, func(d *decision) bool { return d.restore.what == policyDeleted }},
		"a policy that is not made yet was not": {
			func(f *facts) {
				f.policy, f.job, f.run.Status.JobUID = nil, nil, ""
				f.held, f.plan = f.run.Status.Egress, &plan{}
			},
			func(d *decision) bool { return d.restore == nil && d.start },
		},
		"a policy follows the API server": {
			func(f *facts) { f.apiServer = f.apiServer[:1] }, func(d *decision) bool { return d.restore.what == policyBehind },
		},
		"a policy stays while the API server has no address": {func(f *facts) { f.apiServer = nil }, func(d *decision) bool { return d.restore == nil }},
		"a policy of a run that has ended is restored as long as there is its Job": {
			func(f *facts) { terminal(f); f.policy = nil }, func(d *decision) bool { return d.restore.what == policyDeleted },
		},
		"the operator's options do not change what was decided": {
			func(f *facts) { f.options = &egress.Options{Mode: egress.ModeOff} },
			func(d *decision) bool { return d.status.Egress.Policy == "NetworkPolicy" },
		},
		"a Job that is complete is a success": {ended(batchv1.JobComplete), func(d *decision) bool { return d.status.Phase == v1alpha1.HarnessSucceeded && !d.end }},
		"a Job that failed is a failure": {ended(batchv1.JobFailed), func(d *decision) bool {
			c := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionCompleted)
			return d.status.Phase == v1alpha1.HarnessFailed && c.Reason == "BackoffLimitExceeded"
		}},
		"a Job that is on its way to fail has not": {ended(batchv1.JobFailureTarget), func(d *decision) bool { return d.status.Phase == v1alpha1.HarnessRunning }},
		"a Job that is gone is a failure":          {func(f *facts) { f.job, f.lost = nil, true }, func(d *decision) bool { return d.status.Phase == v1alpha1.HarnessFailed }},
		"what has ended cannot be cancelled any more": {
			func(f *facts) { ended(batchv1.JobComplete)(f); f.run.Spec.Cancelled = true }, func(d *decision) bool { return d.status.Phase == v1alpha1.HarnessSucceeded },
		},
		"what is cancelled loses its Job": {func(f *facts) { f.run.Spec.Cancelled = true }, func(d *decision) bool { return d.status.Phase == v1alpha1.HarnessCancelled && d.end }},
		"a Job that is being deleted is not deleted again": {
			func(f *facts) { f.run.Spec.Cancelled = true; f.job.DeletionTimestamp = &metav1.Time{Time: now} }, func(d *decision) bool { return !d.end },
		},
		"a run that is deleted waits for its Job": {deleted, func(d *decision) bool { return d.end && !d.release }},
		"a run that is deleted waits for its Pods": {
			func(f *facts) { deleted(f); f.job = nil; f.pods = []*corev1.Pod{{}} }, func(d *decision) bool { return !d.release },
		},
		"a run that is deleted goes after its Pods": {func(f *facts) { deleted(f); f.job = nil }, func(d *decision) bool { return d.release }},
		"a run is kept until its time to live is over": {
			func(f *facts) { terminal(f); f.run.Spec.TTLSecondsAfterFinished = new(int32(61)) }, func(d *decision) bool { return !d.discard && d.next.Equal(now.Add(time.Second)) },
		},
		"a run goes when its time to live is over": {
			func(f *facts) { terminal(f); f.run.Spec.TTLSecondsAfterFinished = new(int32(60)) }, func(d *decision) bool { return d.discard },
		},
		"a run waits where nothing would hold it": {
			func(f *facts) {
				f.job, f.run.Status = nil, v1alpha1.HarnessRunStatus{}
				f.plan, f.unheld = &plan{}, &obstacle{v1alpha1.ConditionEgressHeld, v1alpha1.ReasonEgressNotEnforced, "nothing", true}
			},
			func(d *decision) bool { return !d.start && d.poll && d.status.Phase == v1alpha1.HarnessPending },
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if d := decide(factsOf(t, test.change), now); !test.is(&d) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// A template that changes changes nothing of a run that has begun.
func TestThePolicyIsThatOfTheDecision(t *testing.T) {
	f := factsOf(t, func(f *facts) { f.plan = &plan{egress: v1alpha1.Egress{Internet: true}}; f.policy = nil })
	want := decide(f, now).restore.want
	rules := want.Object["spec"].(map[string]any)["egress"].([]any)
	if len(rules) != 3 { // names, and both addresses of the API server
		t.Errorf("%v", rules)
	}
}

func TestAWideningPolicyIsFoundByTheLabelsOfThePods(t *testing.T) {
	run := factsOf(t, func(*facts) {}).run
	p := &plan{timeout: 1}
	labels := labelsOfPods()
	for key := range p.jobOf(run).Spec.Template.Labels {
		if _, known := labels[key]; !known && key != v1alpha1.LabelEgress {
			t.Errorf("the Pods have the label %s, of which admission does not know", key)
		}
	}
}
