package sandbox

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/truncate"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// decision is what to do. apply does it in the order of the fields.
type decision struct {
	// restore is how the policy is to be again, nil if it is as it was made, and unrestored why that is not known.
	restore    *egress.Restoration
	unrestored error
	// end deletes the Job, and its Pods with it.
	end bool
	// start makes the Job, and before it what the Job needs.
	start bool
	// status is what the run's is to be.
	status v1alpha1.SandboxRunStatus
	// release takes the finalizer away, once the API server says that the Pods are gone.
	release bool
	// discard deletes the run.
	discard bool
	// next is when to look again if nothing happens, zero is never. poll says that the
	// run waits for something that is not watched, and refused that it is the broker that said no.
	next          time.Time
	poll, refused bool
}

// decide says what follows from the facts. It does not fail, and does nothing.
func decide(f *facts, now time.Time) decision {
	run := f.run
	d := decision{status: *run.Status.DeepCopy()}
	d.status.ObservedGeneration = run.Generation
	if len(f.pods) > 0 || len(f.orphans) > 0 || f.job != nil {
		d.restore, d.unrestored = f.restores()
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
		d.finish(v1alpha1.SandboxCancelled, reason, "the run was cancelled before it ended", now)
	case f.lost && f.left != "": // the end of the run says that nothing has its credentials and its Workspace any more
		d.wait(run, &conditions.Obstacle{Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxPodLeft, Message: "somebody deleted the Job of the run, which ends when " + f.left + " has", Poll: true}, now)
	case f.lost:
		d.finish(v1alpha1.SandboxFailed, "JobLost", "somebody deleted the Job of the run", now)
	case f.job == nil || f.unproven:
		f.decideStart(&d, now)
	default:
		f.decideLife(&d, now)
	}
	if !d.status.Phase.Terminal() {
		f.boundStart(&d, now)
	}
	if d.status.Phase.Terminal() {
		f.decideEnd(&d, now)
	}
	return d
}

// decideStart starts a run, unless something is in its way.
func (f *facts) decideStart(d *decision, now time.Time) {
	if d.status.Phase == "" {
		d.status.Phase = v1alpha1.SandboxPending
	}
	d.set(f.run, v1alpha1.ConditionCompleted, false, v1alpha1.SandboxNotCompleted, "", now)
	if f.unresolved != nil {
		d.wait(f.run, f.unresolved, now)
		return
	}
	d.set(f.run, v1alpha1.ConditionTemplateResolved, true, v1alpha1.SandboxResolved, "", now)
	if f.unbrokered != nil {
		d.wait(f.run, f.unbrokered, now)
		return
	}
	if f.brokered != nil {
		d.set(f.run, v1alpha1.ConditionInterceptionUnavailable, false, string(f.brokered.mode), f.brokered.how, now)
	} else { // a policy may have applied while the run waited
		meta.RemoveStatusCondition(&d.status.Conditions, v1alpha1.ConditionInterceptionUnavailable)
	}
	if f.unheld != nil {
		d.wait(f.run, f.unheld, now)
		return
	}
	if f.unclaimed != nil {
		d.wait(f.run, f.unclaimed, now)
		return
	}
	if len(f.orphans) > 0 { // of a Job that did not get to the status
		d.wait(f.run, &conditions.Obstacle{Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxPodLeft, Message: "somebody deleted a Job of the run; its next one is made when Pod " + f.orphans[0].Name + " is gone", Poll: true}, now)
		return
	}
	if ref := f.run.Spec.WorkspaceRef; ref != nil {
		d.set(f.run, v1alpha1.ConditionWorkspaceBound, true, v1alpha1.WorkspaceClaimed, "", now)
	}
	d.status.Egress, d.start = f.held, true
	if f.brokered != nil {
		d.status.Interception = f.brokered.mode
	}
	if f.plan.Interactive != nil && d.status.Interactive == nil {
		d.status.Interactive = &v1alpha1.InteractiveStatus{Limits: *f.plan.Interactive.DeepCopy()}
	}
	if f.held.Policy == "" {
		d.set(f.run, v1alpha1.ConditionEgressHeld, false, v1alpha1.ReasonEgressNotEnforced, "nothing holds the Pod to the egress of its template: "+f.held.Reason, now)
	} else {
		d.set(f.run, v1alpha1.ConditionEgressHeld, true, v1alpha1.ReasonPolicyInForce, fmt.Sprintf("%s %s holds the Pod: %s", f.held.Policy, owned.Name(f.run).Name, f.held.Reason), now)
	}
}

// boundStart fails a run that does not begin in time: it would hold its Workspace, and a place in quotas, for nothing.
func (f *facts) boundStart(d *decision, now time.Time) {
	c := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionStarted)
	switch {
	case c != nil && c.Status == metav1.ConditionTrue:
		return
	case f.job == nil && !d.start && !f.claimed: // it waits for others
		meta.RemoveStatusCondition(&d.status.Conditions, v1alpha1.ConditionStarted)
		return
	case c == nil:
		d.set(f.run, v1alpha1.ConditionStarted, false, v1alpha1.SandboxStarting, "", now)
		c = meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionStarted)
	}
	deadline := c.LastTransitionTime.Add(f.startTimeout)
	if now.Before(deadline) {
		if d.next.IsZero() || deadline.Before(d.next) {
			d.next = deadline
		}
		return
	}
	message := fmt.Sprintf("the work did not begin within %s: %s", f.startTimeout, d.hindrance())
	d.start = false
	d.set(f.run, v1alpha1.ConditionStarted, false, v1alpha1.SandboxStartTimeout, message, now)
	d.finish(v1alpha1.SandboxFailed, v1alpha1.SandboxStartTimeout, message, now)
}

// hindrance is what a run waits for, as its conditions say it.
func (d *decision) hindrance() string {
	for _, of := range []string{
		v1alpha1.ConditionPodReady, v1alpha1.ConditionJobCreated, v1alpha1.ConditionTemplateResolved, v1alpha1.ConditionCredentialsReady, v1alpha1.ConditionBrokerReady, v1alpha1.ConditionEgressHeld,
	} {
		if c := meta.FindStatusCondition(d.status.Conditions, of); c != nil && c.Status == metav1.ConditionFalse && c.Message != "" {
			return c.Message
		}
	}
	return "its Pod has not come into being"
}

// decideEnd decides about what is left of a run that has ended. Its Pods stay for their logs, unless it was
// cancelled or is deleted.
func (f *facts) decideEnd(d *decision, now time.Time) {
	deleted := !f.run.DeletionTimestamp.IsZero()
	d.end = f.job != nil && f.job.DeletionTimestamp.IsZero() && (deleted || !owned.IsFinished(f.job))
	if deleted {
		d.release = owned.HasFinalizer(f.run) && f.job == nil && len(f.pods)+len(f.orphans) == 0
		return
	}
	if ttl := f.run.Spec.TTLSecondsAfterFinished; ttl != nil && d.status.CompletionTime != nil {
		d.next = d.status.CompletionTime.Add(time.Duration(*ttl) * time.Second)
		d.discard = !now.Before(d.next)
	}
}

// seeJob takes over what the Job says.
func (f *facts) seeJob(d *decision, now time.Time) {
	if f.job == nil || f.unproven || d.status.Phase.Terminal() {
		return
	}
	d.status.JobName, d.status.JobUID = f.job.Name, string(f.job.UID)
	if d.status.StartTime == nil {
		d.status.StartTime = f.job.CreationTimestamp.DeepCopy()
	}
	d.set(f.run, v1alpha1.ConditionJobCreated, true, v1alpha1.SandboxCreated, "", now)
	for _, c := range f.job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			d.finish(v1alpha1.SandboxSucceeded, "Succeeded", "the work ended with exit code 0", now)
		case c.Type == batchv1.JobFailed && c.Reason == batchv1.JobReasonDeadlineExceeded && f.run.Status.Interactive != nil: // nobody had been there to end it
			d.finish(v1alpha1.SandboxCancelled, v1alpha1.InteractiveTerminatedMaxLifetime, "its life is over", now)
		case c.Type == batchv1.JobFailed:
			d.finish(v1alpha1.SandboxFailed, c.Reason, c.Message, now)
		}
	}
}

// seePods takes over what the last Pod says.
func (f *facts) seePods(d *decision, now time.Time) {
	if f.unproven {
		return
	}
	if len(f.pods) == 0 {
		f.seeNoPod(d, now)
		return
	}
	pod := f.pods[len(f.pods)-1]
	d.status.PodName = pod.Name
	condition := metav1.Condition{Type: v1alpha1.ConditionPodReady, Status: metav1.ConditionFalse, Reason: v1alpha1.SandboxWaiting, ObservedGeneration: f.run.Generation, Message: "the Pod is " + string(pod.Status.Phase)}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.SandboxReady, ""
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			condition.Message = truncate.Text("it is not scheduled: "+c.Message, conditions.MaxReason)
		}
	}
	f.seeContainers(d, pod, &condition)
	f.seeRecorder(d, pod, now)
	if owned.HasEnded(pod) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.SandboxEnded, ""
	}
	condition.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&d.status.Conditions, condition)
	if pod.Status.Phase == corev1.PodRunning || owned.HasEnded(pod) {
		d.set(f.run, v1alpha1.ConditionStarted, true, v1alpha1.SandboxStarted, "", now)
	}
	if pod.Status.Phase == corev1.PodRunning && !d.status.Phase.Terminal() {
		d.status.Phase = v1alpha1.SandboxRunning
	}
}

// seeNoPod says why a Job has no Pod, if its controller cannot make it.
func (f *facts) seeNoPod(d *decision, now time.Time) {
	if f.job == nil || d.status.Phase.Terminal() {
		return
	}
	d.poll = true // Events are not watched
	if f.refusal != "" {
		d.set(f.run, v1alpha1.ConditionPodReady, false, v1alpha1.SandboxRefused, "the controller of Jobs cannot make the Pod: "+f.refusal, now)
	}
}

// seeContainers takes over what the kubelet says about the work, the proxy, and what comes before it.
func (f *facts) seeContainers(d *decision, pod *corev1.Pod, condition *metav1.Condition) {
	for _, c := range pod.Status.InitContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != podInitializing {
			condition.Message = truncate.Text(c.Name+": "+w.Reason+": "+w.Message, conditions.MaxReason)
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 && pod.Status.Phase == corev1.PodFailed {
			d.status.Output = truncate.Text(c.Name+": "+t.Message, maxOutput)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != podInitializing {
			condition.Message = truncate.Text(w.Reason+": "+w.Message, conditions.MaxReason)
		}
		if t := c.State.Terminated; t != nil {
			d.status.ExitCode, d.status.Output = new(t.ExitCode), truncate.Text(t.Message, maxOutput)
		}
	}
}

// podInitializing is why a container waits for those before it, which say more.
const podInitializing = "PodInitializing"

// finish ends a run.
func (d *decision) finish(phase v1alpha1.SandboxPhase, reason, message string, now time.Time) {
	at := metav1.NewTime(now.Truncate(time.Second))
	d.status.Phase, d.status.CompletionTime = phase, &at
	if reason == "" {
		reason = string(phase)
	}
	conditions.Set(&d.status.Conditions, d.status.ObservedGeneration, v1alpha1.ConditionCompleted, true, reason, message, now)
}

// wait has a run wait for what is in its way.
func (d *decision) wait(run *v1alpha1.SandboxRun, of *conditions.Obstacle, now time.Time) {
	d.set(run, of.Condition, of.Condition == v1alpha1.ConditionInterceptionUnavailable, of.Reason, of.Message, now)
	if of.Fatal {
		d.finish(v1alpha1.SandboxFailed, of.Reason, of.Message, now)
		return
	}
	d.poll, d.refused = of.Poll, of.Refused
}

func (d *decision) set(run *v1alpha1.SandboxRun, condition string, is bool, reason, message string, now time.Time) {
	conditions.Set(&d.status.Conditions, run.Generation, condition, is, reason, message, now)
}
