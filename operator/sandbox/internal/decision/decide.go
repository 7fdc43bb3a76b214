package decision

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
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// MaxOutput bounds the output in a status, in bytes.
const MaxOutput = 4096

// Decision is what to do. apply does it in the order of the fields.
type Decision struct {
	// Restore is how the policy is to be again, nil if it is as it was made, and Unrestored why that is not known.
	Restore    *egress.Restoration
	Unrestored error
	// End deletes the Job, and its Pods with it.
	End bool
	// Start makes the Job, and before it what the Job needs.
	Start bool
	// Status is what the run's is to be.
	Status v1alpha1.SandboxRunStatus
	// Release takes the finalizer away, once the API server says that the Pods are gone.
	Release bool
	// Discard deletes the run.
	Discard bool
	// Next is when to look again if nothing happens, zero is never. Poll says that the
	// run waits for something that is not watched, and Refused that it is the broker that said no.
	Next          time.Time
	Poll, Refused bool
}

// Of says what follows from the facts. It does not fail, and does nothing.
func Of(f *facts.Facts, now time.Time) Decision {
	run := f.Run
	d := Decision{Status: *run.Status.DeepCopy()}
	d.Status.ObservedGeneration = run.Generation
	if len(f.Pods) > 0 || len(f.Orphans) > 0 || f.Job != nil {
		d.Restore, d.Unrestored = restores(f)
	}
	d.SeeJob(f, now)
	d.seePods(f, now)
	leaving := run.Spec.Cancelled || !run.DeletionTimestamp.IsZero()
	switch {
	case d.Status.Phase.Terminal():
	case leaving:
		reason := "Cancelled"
		if !run.Spec.Cancelled {
			reason = "Deleted"
		}
		d.Finish(v1alpha1.SandboxCancelled, reason, "the run was cancelled before it ended", now)
	case f.Lost && f.Left != "": // the end of the run says that nothing has its credentials and its Workspace any more
		d.Wait(run, &conditions.Obstacle{Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxPodLeft, Message: "somebody deleted the Job of the run, which ends when " + f.Left + " has", Poll: true}, now)
	case f.Lost:
		d.Finish(v1alpha1.SandboxFailed, "JobLost", "somebody deleted the Job of the run", now)
	case f.Job == nil || f.Unproven:
		d.decideStart(f, now)
	default:
		d.decideLife(f, now)
	}
	if !d.Status.Phase.Terminal() {
		d.boundStart(f, now)
	}
	if d.Status.Phase.Terminal() {
		d.decideEnd(f, now)
	}
	return d
}

// decideStart starts a run, unless something is in its way.
func (d *Decision) decideStart(f *facts.Facts, now time.Time) {
	if d.Status.Phase == "" {
		d.Status.Phase = v1alpha1.SandboxPending
	}
	d.Set(f.Run, v1alpha1.ConditionCompleted, false, v1alpha1.SandboxNotCompleted, "", now)
	if f.Unresolved != nil {
		d.Wait(f.Run, f.Unresolved, now)
		return
	}
	d.Set(f.Run, v1alpha1.ConditionTemplateResolved, true, v1alpha1.SandboxResolved, "", now)
	if f.Unproxied != nil {
		d.Wait(f.Run, f.Unproxied, now)
		return
	}
	if f.Proxied != nil {
		d.Set(f.Run, v1alpha1.ConditionInterceptionUnavailable, false, string(f.Proxied.Mode), f.Proxied.How, now)
	} else { // a policy may have applied while the run waited
		meta.RemoveStatusCondition(&d.Status.Conditions, v1alpha1.ConditionInterceptionUnavailable)
	}
	if f.Unheld != nil {
		d.Wait(f.Run, f.Unheld, now)
		return
	}
	if f.Unclaimed != nil {
		d.Wait(f.Run, f.Unclaimed, now)
		return
	}
	if len(f.Orphans) > 0 { // of a Job that did not get to the status
		d.Wait(f.Run, &conditions.Obstacle{Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxPodLeft, Message: "somebody deleted a Job of the run; its next one is made when Pod " + f.Orphans[0].Name + " is gone", Poll: true}, now)
		return
	}
	if ref := f.Run.Spec.WorkspaceRef; ref != nil {
		d.Set(f.Run, v1alpha1.ConditionWorkspaceBound, true, v1alpha1.WorkspaceClaimed, "", now)
	}
	d.Status.Egress, d.Start = f.Held, true
	if f.Proxied != nil {
		d.Status.Interception = f.Proxied.Mode
	}
	if f.Plan.Interactive != nil && d.Status.Interactive == nil {
		d.Status.Interactive = &v1alpha1.InteractiveStatus{Limits: *f.Plan.Interactive.DeepCopy()}
	}
	if f.Held.Policy == "" {
		d.Set(f.Run, v1alpha1.ConditionEgressHeld, false, v1alpha1.ReasonEgressNotEnforced, "nothing holds the Pod to the egress of its template: "+f.Held.Reason, now)
	} else {
		d.Set(f.Run, v1alpha1.ConditionEgressHeld, true, v1alpha1.ReasonPolicyInForce, fmt.Sprintf("%s %s holds the Pod: %s", f.Held.Policy, owned.Name(f.Run).Name, f.Held.Reason), now)
	}
}

// boundStart fails a run that does not begin in time: it would hold its Workspace, and a place in quotas, for nothing.
func (d *Decision) boundStart(f *facts.Facts, now time.Time) {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionStarted)
	switch {
	case c != nil && c.Status == metav1.ConditionTrue:
		return
	case f.Job == nil && !d.Start && !f.Claimed: // it waits for others
		meta.RemoveStatusCondition(&d.Status.Conditions, v1alpha1.ConditionStarted)
		return
	case c == nil:
		d.Set(f.Run, v1alpha1.ConditionStarted, false, v1alpha1.SandboxStarting, "", now)
		c = meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionStarted)
	}
	deadline := c.LastTransitionTime.Add(f.StartTimeout)
	if now.Before(deadline) {
		if d.Next.IsZero() || deadline.Before(d.Next) {
			d.Next = deadline
		}
		return
	}
	message := fmt.Sprintf("the work did not begin within %s: %s", f.StartTimeout, d.hindrance())
	d.Start = false
	d.Set(f.Run, v1alpha1.ConditionStarted, false, v1alpha1.SandboxStartTimeout, message, now)
	d.Finish(v1alpha1.SandboxFailed, v1alpha1.SandboxStartTimeout, message, now)
}

// hindrance is what a run waits for, as its conditions say it.
func (d *Decision) hindrance() string {
	for _, of := range []string{
		v1alpha1.ConditionPodReady, v1alpha1.ConditionJobCreated, v1alpha1.ConditionTemplateResolved, v1alpha1.ConditionCredentialsReady, v1alpha1.ConditionBrokerReady, v1alpha1.ConditionEgressHeld,
	} {
		if c := meta.FindStatusCondition(d.Status.Conditions, of); c != nil && c.Status == metav1.ConditionFalse && c.Message != "" {
			return c.Message
		}
	}
	return "its Pod has not come into being"
}

// decideEnd decides about what is left of a run that has ended. Its Pods stay for their logs, unless it was
// cancelled or is deleted.
func (d *Decision) decideEnd(f *facts.Facts, now time.Time) {
	deleted := !f.Run.DeletionTimestamp.IsZero()
	d.End = f.Job != nil && f.Job.DeletionTimestamp.IsZero() && (deleted || !owned.IsFinished(f.Job))
	if deleted {
		d.Release = owned.HasFinalizer(f.Run) && f.Job == nil && len(f.Pods)+len(f.Orphans) == 0
		return
	}
	if ttl := f.Run.Spec.TTLSecondsAfterFinished; ttl != nil && d.Status.CompletionTime != nil {
		d.Next = d.Status.CompletionTime.Add(time.Duration(*ttl) * time.Second)
		d.Discard = !now.Before(d.Next)
	}
}

// SeeJob takes over what the Job says.
func (d *Decision) SeeJob(f *facts.Facts, now time.Time) {
	if f.Job == nil || f.Unproven || d.Status.Phase.Terminal() {
		return
	}
	d.Status.JobName, d.Status.JobUID = f.Job.Name, string(f.Job.UID)
	if d.Status.StartTime == nil {
		d.Status.StartTime = f.Job.CreationTimestamp.DeepCopy()
	}
	d.Set(f.Run, v1alpha1.ConditionJobCreated, true, v1alpha1.SandboxCreated, "", now)
	for _, c := range f.Job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			d.Finish(v1alpha1.SandboxSucceeded, "Succeeded", "the work ended with exit code 0", now)
		case c.Type == batchv1.JobFailed && c.Reason == batchv1.JobReasonDeadlineExceeded && f.Run.Status.Interactive != nil: // nobody had been there to end it
			d.Finish(v1alpha1.SandboxCancelled, v1alpha1.InteractiveTerminatedMaxLifetime, "its life is over", now)
		case c.Type == batchv1.JobFailed:
			d.Finish(v1alpha1.SandboxFailed, c.Reason, c.Message, now)
		}
	}
}

// seePods takes over what the last Pod says.
func (d *Decision) seePods(f *facts.Facts, now time.Time) {
	if f.Unproven {
		return
	}
	if len(f.Pods) == 0 {
		d.seeNoPod(f, now)
		return
	}
	pod := f.Pods[len(f.Pods)-1]
	d.Status.PodName = pod.Name
	condition := metav1.Condition{Type: v1alpha1.ConditionPodReady, Status: metav1.ConditionFalse, Reason: v1alpha1.SandboxWaiting, ObservedGeneration: f.Run.Generation, Message: "the Pod is " + string(pod.Status.Phase)}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.SandboxReady, ""
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			condition.Message = truncate.Text("it is not scheduled: "+c.Message, conditions.MaxReason)
		}
	}
	d.seeContainers(pod, &condition)
	d.seeRecorder(f, pod, now)
	if owned.HasEnded(pod) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.SandboxEnded, ""
	}
	condition.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&d.Status.Conditions, condition)
	if pod.Status.Phase == corev1.PodRunning || owned.HasEnded(pod) {
		d.Set(f.Run, v1alpha1.ConditionStarted, true, v1alpha1.SandboxStarted, "", now)
	}
	if pod.Status.Phase == corev1.PodRunning && !d.Status.Phase.Terminal() {
		d.Status.Phase = v1alpha1.SandboxRunning
	}
}

// seeNoPod says why a Job has no Pod, if its controller cannot make it.
func (d *Decision) seeNoPod(f *facts.Facts, now time.Time) {
	if f.Job == nil || d.Status.Phase.Terminal() {
		return
	}
	d.Poll = true // Events are not watched
	if f.Refusal != "" {
		d.Set(f.Run, v1alpha1.ConditionPodReady, false, v1alpha1.SandboxRefused, "the controller of Jobs cannot make the Pod: "+f.Refusal, now)
	}
}

// seeContainers takes over what the kubelet says about the work, the proxy, and what comes before it.
func (d *Decision) seeContainers(pod *corev1.Pod, condition *metav1.Condition) {
	for _, c := range pod.Status.InitContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != podInitializing {
			condition.Message = truncate.Text(c.Name+": "+w.Reason+": "+w.Message, conditions.MaxReason)
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 && pod.Status.Phase == corev1.PodFailed {
			d.Status.Output = truncate.Text(c.Name+": "+t.Message, MaxOutput)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != podInitializing {
			condition.Message = truncate.Text(w.Reason+": "+w.Message, conditions.MaxReason)
		}
		if t := c.State.Terminated; t != nil {
			d.Status.ExitCode, d.Status.Output = new(t.ExitCode), truncate.Text(t.Message, MaxOutput)
		}
	}
}

// podInitializing is why a container waits for those before it, which say more.
const podInitializing = "PodInitializing"

// Finish ends a run.
func (d *Decision) Finish(phase v1alpha1.SandboxPhase, reason, message string, now time.Time) {
	at := metav1.NewTime(now.Truncate(time.Second))
	d.Status.Phase, d.Status.CompletionTime = phase, &at
	if reason == "" {
		reason = string(phase)
	}
	conditions.Set(&d.Status.Conditions, d.Status.ObservedGeneration, v1alpha1.ConditionCompleted, true, reason, message, now)
}

// Wait has a run wait for what is in its way.
func (d *Decision) Wait(run *v1alpha1.SandboxRun, of *conditions.Obstacle, now time.Time) {
	d.Set(run, of.Condition, of.Condition == v1alpha1.ConditionInterceptionUnavailable, of.Reason, of.Message, now)
	if of.Fatal {
		d.Finish(v1alpha1.SandboxFailed, of.Reason, of.Message, now)
		return
	}
	d.Poll, d.Refused = of.Poll, of.Refused
}

// Set sets a condition of the run.
func (d *Decision) Set(run *v1alpha1.SandboxRun, condition string, is bool, reason, message string, now time.Time) {
	conditions.Set(&d.Status.Conditions, run.Generation, condition, is, reason, message, now)
}

// restores says what there is to restore of a run that has a Job or Pods, nil for nothing. The Job is made after the policy, so
// a policy that is not there was withdrawn; before that it is only not made yet.
func restores(f *facts.Facts) (*egress.Restoration, error) {
	e := f.Run.Status.Egress
	if e == nil || e.Policy == "" || !f.Options.On() {
		return nil, nil
	}
	return f.PolicyOf().Restore(f.Policy, f.APIServer)
}
