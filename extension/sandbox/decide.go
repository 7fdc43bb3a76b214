package sandbox

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// decision is what to do. apply does it in the order of the fields.
type decision struct {
	// restore is how the policy is to be again, nil if it is as it was made.
	restore *restoration
	// end deletes the Job, and its Pods with it.
	end bool
	// start makes the Job, and before it what the Job needs.
	start bool
	// status is what the run's is to be.
	status v1alpha1.HarnessRunStatus
	// release takes the finalizer away, once the API server says that the Pods are gone.
	release bool
	// discard deletes the run.
	discard bool
	// next is when to look again if nothing happens, zero is never. poll says that the
	// run waits for something that is not watched.
	next time.Time
	poll bool
}

// decide says what follows from the facts. It does not fail, and does nothing.
func decide(f *facts, now time.Time) decision {
	run := f.run
	d := decision{status: *run.Status.DeepCopy()}
	d.status.ObservedGeneration = run.Generation
	if len(f.pods) > 0 || f.job != nil {
		d.restore = f.restores()
	}
	f.seeJob(&d, now)
	f.seePods(&d, now)
	leaving := run.Spec.Cancelled || !run.DeletionTimestamp.IsZero()
	switch {
	case d.status.Phase.Terminal():
	case leaving:
		reason := "Cancelled"
		if !run.Spec.Cancelled {
			reason = "Deleted"
		}
		d.finish(v1alpha1.HarnessCancelled, reason, "the run was cancelled before it ended", now)
	case f.lost:
		d.finish(v1alpha1.HarnessFailed, "JobLost", "somebody deleted the Job of the run", now)
	case f.job == nil:
		f.decideStart(&d, now)
	}
	if d.status.Phase.Terminal() {
		f.decideEnd(&d, now)
	}
	return d
}

// decideStart starts a run, unless something is in its way.
func (f *facts) decideStart(d *decision, now time.Time) {
	if d.status.Phase == "" {
		d.status.Phase = v1alpha1.HarnessPending
	}
	d.set(f.run, v1alpha1.ConditionCompleted, false, v1alpha1.HarnessNotCompleted, "", now)
	if f.unresolved != nil {
		d.wait(f.run, f.unresolved, now)
		return
	}
	d.set(f.run, v1alpha1.ConditionTemplateResolved, true, v1alpha1.HarnessResolved, "", now)
	if f.unheld != nil {
		d.wait(f.run, f.unheld, now)
		return
	}
	d.status.Egress, d.start = f.held, true
	if f.held.Policy == "" {
		d.set(f.run, v1alpha1.ConditionEgressHeld, false, v1alpha1.ReasonEgressNotEnforced, "nothing holds the Pod to the egress of its template: "+f.held.Reason, now)
	} else {
		d.set(f.run, v1alpha1.ConditionEgressHeld, true, v1alpha1.ReasonPolicyInForce, fmt.Sprintf("%s %s holds the Pod: %s", f.held.Policy, nameOf(f.run).Name, f.held.Reason), now)
	}
}

// decideEnd decides about what is left of a run that has ended. Its Pods stay for their logs, unless it was
// cancelled or is deleted.
func (f *facts) decideEnd(d *decision, now time.Time) {
	deleted := !f.run.DeletionTimestamp.IsZero()
	d.end = f.job != nil && f.job.DeletionTimestamp.IsZero() && (deleted || !isFinished(f.job))
	if deleted {
		d.release = hasFinalizer(f.run) && f.job == nil && len(f.pods) == 0
		return
	}
	if ttl := f.run.Spec.TTLSecondsAfterFinished; ttl != nil && d.status.CompletionTime != nil {
		d.next = d.status.CompletionTime.Add(time.Duration(*ttl) * time.Second)
		d.discard = !now.Before(d.next)
	}
}

// seeJob takes over what the Job says.
func (f *facts) seeJob(d *decision, now time.Time) {
	if f.job == nil || d.status.Phase.Terminal() {
		return
	}
	d.status.JobName, d.status.JobUID = f.job.Name, string(f.job.UID)
	if d.status.StartTime == nil {
		d.status.StartTime = f.job.CreationTimestamp.DeepCopy()
	}
	d.set(f.run, v1alpha1.ConditionJobCreated, true, v1alpha1.HarnessCreated, "", now)
	for _, c := range f.job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			d.finish(v1alpha1.HarnessSucceeded, "Succeeded", "the work ended with exit code 0", now)
		case c.Type == batchv1.JobFailed:
			d.finish(v1alpha1.HarnessFailed, c.Reason, c.Message, now)
		}
	}
}

// seePods takes over what the last Pod says.
func (f *facts) seePods(d *decision, now time.Time) {
	if len(f.pods) == 0 {
		return
	}
	pod := f.pods[len(f.pods)-1]
	d.status.PodName = pod.Name
	condition := metav1.Condition{Type: v1alpha1.ConditionPodReady, Status: metav1.ConditionFalse, Reason: v1alpha1.HarnessWaiting, ObservedGeneration: f.run.Generation, Message: "the Pod is " + string(pod.Status.Phase)}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.HarnessReady, ""
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			condition.Message = cut("it is not scheduled: "+c.Message, maxReason)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			condition.Message = cut(w.Reason+": "+w.Message, maxReason)
		}
		if t := c.State.Terminated; t != nil {
			d.status.ExitCode, d.status.Output = new(t.ExitCode), cut(t.Message, maxOutput)
		}
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.HarnessEnded, ""
	}
	condition.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&d.status.Conditions, condition)
	if pod.Status.Phase == corev1.PodRunning && !d.status.Phase.Terminal() {
		d.status.Phase = v1alpha1.HarnessRunning
	}
}

// finish ends a run.
func (d *decision) finish(phase v1alpha1.HarnessPhase, reason, message string, now time.Time) {
	at := metav1.NewTime(now.Truncate(time.Second))
	d.status.Phase, d.status.CompletionTime = phase, &at
	if reason == "" {
		reason = string(phase)
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionCompleted, Status: metav1.ConditionTrue, Reason: reason, Message: cut(message, maxReason), LastTransitionTime: at, ObservedGeneration: d.status.ObservedGeneration,
	})
}

// wait has a run wait for what is in its way.
func (d *decision) wait(run *v1alpha1.HarnessRun, of *obstacle, now time.Time) {
	d.set(run, of.condition, false, of.reason, of.message, now)
	d.poll = of.poll
}

func (d *decision) set(run *v1alpha1.HarnessRun, condition string, is bool, reason, message string, now time.Time) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: cut(message, maxReason), ObservedGeneration: run.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}

// isFinished reports whether a Job has no Pods any more, and will have none.
func isFinished(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return true
		}
	}
	return false
}
