package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// prepare makes the volume, and seeds it.
func (a *workspaceAttempt) prepare(ctx context.Context) error {
	if a.status.Phase == "" {
		a.status.Phase = v1alpha1.WorkspaceSeeding
	}
	bound, err := a.claim(ctx)
	if err != nil || bound == "" {
		return err
	}
	a.status.ClaimName = bound
	switch {
	case a.status.Phase != v1alpha1.WorkspaceSeeding:
		return nil
	case a.ws.Spec.Seed == nil:
		a.ready("there is nothing to fetch")
		return nil
	}
	return a.seed(ctx)
}

func (a *workspaceAttempt) ready(message string) {
	a.status.Phase = v1alpha1.WorkspaceActive
	a.set(v1alpha1.ConditionSeeded, true, "Seeded", message)
	a.set(v1alpha1.ConditionWorkspaceReady, true, "Ready", "")
}

// waits says what a Workspace waits for, and failed that it is in vain.
func (a *workspaceAttempt) waits(condition, reason, message string, poll bool) {
	a.set(condition, false, reason, message)
	a.set(v1alpha1.ConditionWorkspaceReady, false, reason, message)
	a.poll = a.poll || poll
}

func (a *workspaceAttempt) failed(reason, message string) {
	a.status.Phase = v1alpha1.WorkspaceFailed
	a.waits(v1alpha1.ConditionSeeded, reason, message, false)
}

// claim makes the PersistentVolumeClaim, and returns its name. It need not be bound: many classes bind only when a Pod
// mounts it.
func (a *workspaceAttempt) claim(ctx context.Context) (name string, err error) {
	there := &corev1.PersistentVolumeClaim{}
	err = a.cached.Get(ctx, owned.WorkspaceName(a.ws), there)
	if apierrors.IsNotFound(err) {
		if there, err = workload.Claim(a.ws); err != nil {
			a.failed(v1alpha1.WorkspaceSeedRejected, "spec."+err.Error())
			return "", nil //nolint:nilerr // the status says it
		}
		err = a.writer.Create(ctx, there)
		if apierrors.IsAlreadyExists(err) {
			err = a.live.Get(ctx, owned.WorkspaceName(a.ws), there)
		}
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // a quota, or a webhook
			a.waits(v1alpha1.ConditionPVCBound, v1alpha1.SandboxRefused, err.Error(), true)
			return "", nil
		}
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("PersistentVolumeClaim %s: %w", owned.WorkspaceName(a.ws), err)
	case !owned.Is(there, a.ref()):
		taken := &owned.TakenError{Kind: "PersistentVolumeClaim", Name: owned.WorkspaceName(a.ws).String()}
		a.waits(v1alpha1.ConditionPVCBound, v1alpha1.SandboxNameTaken, taken.Error(), true)
		return "", nil
	}
	a.set(v1alpha1.ConditionPVCBound, there.Status.Phase == corev1.ClaimBound, "Claim", "the PersistentVolumeClaim is "+string(there.Status.Phase))
	return there.Name, nil
}

// seed runs the Job that fetches, behind its policy.
func (a *workspaceAttempt) seed(ctx context.Context) error {
	if err := workload.CheckSeed(a.ws.Spec.Seed); err != nil {
		a.failed(v1alpha1.WorkspaceSeedRejected, "spec."+err.Error())
		return nil //nolint:nilerr // the status says it
	}
	job := &batchv1.Job{}
	err := a.live.Get(ctx, owned.WorkspaceName(a.ws), job)
	switch {
	case err == nil && !owned.Is(job, a.ref()):
		a.waits(v1alpha1.ConditionSeeded, v1alpha1.SandboxNameTaken, (&owned.TakenError{Kind: "Job", Name: owned.WorkspaceName(a.ws).String()}).Error(), true)
		_, err := a.clear(ctx, owned.PodsOfSeed(a.ws), "", func(pod *corev1.Pod) { a.tellOrphan(ctx, pod) }) // of a Job that was there before
		return err
	case client.IgnoreNotFound(err) != nil:
		return err
	case err == nil && a.status.SeedJobUID != string(job.UID): // an attempt that did not get to the status made it, or somebody else
		want, err := a.seedJob(ctx)
		if err == nil {
			err = a.prove(ctx, job, want)
		}
		if err != nil {
			return err
		}
	}
	return a.follow(ctx, job)
}

// follow goes on with the Job of the seed, which has no name if there is none. Another Job, and what comes after the seed,
// wait for the Pods of one that somebody deleted: two would write into the volume, or one that has what is on lease.
func (a *workspaceAttempt) follow(ctx context.Context, job *batchv1.Job) error {
	began, ended := job.Name != "", owned.IsFinished(job)
	left, err := a.clear(ctx, owned.PodsOfSeed(a.ws), job.UID, func(pod *corev1.Pod) { a.tellOrphan(ctx, pod) })
	switch {
	case err != nil:
		return err
	case ended && left == "":
		return a.seeded(ctx, job)
	}
	held, err := a.hold(ctx, began || left != "")
	if err != nil || !held {
		return err
	}
	if began {
		a.status.SeedJobUID = string(job.UID)
	}
	if left != "" && (ended || !began) {
		a.waits(v1alpha1.ConditionSeeded, v1alpha1.SandboxPodLeft, "somebody deleted a Job of the seed, which goes on when Pod "+left+" has ended", true)
		return nil
	}
	if began {
		return nil
	}
	if ready, err := a.equipSeed(ctx); err != nil || !ready {
		return err
	}
	return a.begin(ctx)
}

// begin makes the Job that fetches.
func (a *workspaceAttempt) begin(ctx context.Context) error {
	job, err := a.seedJob(ctx)
	if err != nil {
		return err
	}
	err = a.writer.Create(ctx, job)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		a.waits(v1alpha1.ConditionSeeded, v1alpha1.SandboxRefused, err.Error(), true)
		return nil
	}
	a.status.SeedJobUID = string(job.UID)
	a.waits(v1alpha1.ConditionSeeded, "Seeding", fmt.Sprintf("Job %s fetches %d repositories", job.Name, len(a.ws.Spec.Seed.Repos)), false)
	return err
}

// seeded takes over how the Job ended.
func (a *workspaceAttempt) seeded(ctx context.Context, job *batchv1.Job) error {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobFailed || c.Type == batchv1.JobComplete) {
			a.took = max(c.LastTransitionTime.Sub(job.CreationTimestamp.Time), time.Millisecond) // times have no less than seconds
		}
		if c.Status != corev1.ConditionTrue || c.Type != batchv1.JobFailed {
			continue
		}
		message := c.Reason + ": " + c.Message
		var pods corev1.PodList
		if err := a.cached.List(ctx, &pods, client.InNamespace(a.ws.Namespace), client.MatchingLabels{v1alpha1.LabelWorkspace: a.ws.Name}); err != nil {
			return err
		}
		for i := range pods.Items {
			status := &pods.Items[i].Status // what redirects may have failed, or the proxy
			for _, c := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
				if t := c.State.Terminated; t != nil && t.ExitCode != 0 && t.Message != "" && owned.Is(&pods.Items[i], owned.ByJob(job)) {
					message = t.Message
				}
			}
		}
		a.failed(v1alpha1.WorkspaceSeedFailed, message)
		return nil
	}
	a.ready(fmt.Sprintf("%d repositories were fetched", len(a.ws.Spec.Seed.Repos)))
	return nil
}

// hold decides once how the seed is held to its egress, and keeps the policy as it was made. began says
// that there is a Job: a policy that is gone then was withdrawn.
func (a *workspaceAttempt) hold(ctx context.Context, began bool) (held bool, err error) {
	apiServer, err := a.holder.APIServer(ctx, a.cached)
	if err != nil {
		return false, err
	}
	if a.status.Egress == nil {
		if held, err = a.decide(ctx, apiServer); err != nil || !held {
			return false, err
		}
		if err := a.write(ctx); err != nil { // before there is a Job
			return false, err
		}
	}
	if a.status.Egress.Policy == "" {
		return true, nil
	}
	of := egress.Held{ObjectMeta: owned.WorkspaceMeta(a.ws), Label: a.ws.UID, Decision: a.status.Egress, Options: &a.options.Egress}
	there := egress.NewPolicy(of.Kind())
	err = a.live.Get(ctx, owned.WorkspaceName(a.ws), there)
	switch {
	case apierrors.IsNotFound(err):
		there = nil
	case err != nil:
		return false, err
	case !owned.Is(there, a.ref()) && !began:
		a.waits(v1alpha1.ConditionSeeded, v1alpha1.SandboxNameTaken, (&owned.TakenError{Kind: there.GetKind(), Name: owned.WorkspaceName(a.ws).String()}).Error(), true)
		return false, nil
	}
	restoration, err := of.Restore(there, apiServer)
	if err != nil || restoration == nil {
		return err == nil, err
	}
	written, err := a.holder.Write(ctx, restoration)
	if err != nil {
		return false, err
	}
	if (began || there != nil) && restoration.Was != egress.Behind {
		a.tellRestored(ctx, restoration.Was, written.GetResourceVersion())
	}
	return true, nil
}

func (a *workspaceAttempt) tellRestored(ctx context.Context, was, version string) {
	restoredTotal.WithLabelValues(was).Inc()
	a.tell(ctx, &extension.Record{
		ID: string(a.ws.UID) + "-restored-" + version, Action: actionRestored, Reason: "the network policy of the seed was " + was + ", and holds it again",
		Object: a.object(),
	})
}

// tellOrphan records that a Pod of the seed was deleted whose Job is gone.
func (a *workspaceAttempt) tellOrphan(ctx context.Context, pod *corev1.Pod) {
	if a.recorder == nil { // at the removal
		return
	}
	object := a.object()
	a.tell(ctx, &extension.Record{
		ID: string(a.ws.UID) + "-orphan-deleted-" + string(pod.UID), Action: actionOrphanDeleted, Reason: orphaned(pod), Object: object,
		Pod: corev1.ObjectReference{Name: pod.Name, UID: pod.UID},
	})
	a.events.Eventf(&object, nil, corev1.EventTypeWarning, "OrphanDeleted", "Seed", "%s", orphaned(pod))
}

// decide finds out whether policies hold here, and what the proxy is.
func (a *workspaceAttempt) decide(ctx context.Context, apiServer []netip.AddrPort) (held bool, err error) {
	if ready, err := a.intercept(ctx); err != nil || !ready {
		return false, err
	}
	e := workload.SeedEgress(a.ws.Spec.Seed).DeepCopy()
	if a.proxied != nil {
		a.proxied.Open(e)
	}
	if err := egress.Check(e, &a.options.Egress); err != nil {
		a.failed(v1alpha1.ReasonEgressInvalid, "spec.seed.egress."+err.Error())
		return false, nil //nolint:nilerr // the status says it
	}
	decided, err := a.holder.Decide(ctx, e, apiServer)
	if err == nil && decided.Policy != "" {
		err = a.holder.CheckOthers(ctx, owned.WorkspaceName(a.ws), owned.PodLabelsOfSeed(a.ws), owned.Whose)
	}
	if u, ok := errors.AsType[*egress.Unheld](err); ok {
		a.waits(v1alpha1.ConditionSeeded, u.Reason, u.Message, true)
		return false, nil
	}
	if err == nil {
		if p := a.proxied; p != nil {
			decided.Hosts, decided.Broker, a.status.Interception = p.Hosts, p.Broker, p.Mode
		}
		a.status.Egress = decided
	}
	return err == nil, err
}
