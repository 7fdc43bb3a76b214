package facts

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// readClaim reads the Workspace of a run, nil if there is none, and whether the run has it.
func (r *Reader) readClaim(ctx context.Context, f *Facts) (*v1alpha1.Workspace, error) {
	ref := f.Run.Spec.WorkspaceRef
	if ref == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	ws := &v1alpha1.Workspace{}
	err := r.Cached.Get(ctx, client.ObjectKey{Namespace: f.Run.Namespace, Name: ref.Name}, ws)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, fmt.Errorf("reading Workspace %s/%s: %w", f.Run.Namespace, ref.Name, err)
	}
	f.Claimed = owned.HolderUID(ws) == string(f.Run.UID)
	return ws, nil
}

// readQueue says why a run does not have its Workspace yet.
func (r *Reader) readQueue(ctx context.Context, f *Facts, ws *v1alpha1.Workspace) error {
	if f.Claimed || f.Run.Spec.WorkspaceRef == nil {
		return nil
	}
	f.Unclaimed = &conditions.Obstacle{Condition: v1alpha1.ConditionWorkspaceBound}
	switch {
	case ws == nil:
		f.Unclaimed.Reason, f.Unclaimed.Message = v1alpha1.WorkspaceMissing, "there is no Workspace "+f.Run.Spec.WorkspaceRef.Name
		return nil
	case ws.Status.Phase != v1alpha1.WorkspaceActive:
		f.Unclaimed.Reason, f.Unclaimed.Message = v1alpha1.WorkspaceNotReady, notReady(ws)
		return nil
	}
	waiting, err := r.Waiting(ctx, ws)
	if err != nil {
		return err
	}
	place := slices.IndexFunc(waiting, func(run *v1alpha1.SandboxRun) bool { return run.UID == f.Run.UID })
	f.Unclaimed.Reason = v1alpha1.WorkspaceBusy
	f.Unclaimed.Message = fmt.Sprintf("Workspace %s: the run is number %d of those that wait", ws.Name, max(place, 0)+1)
	if h := ws.Status.ActiveRun; h != nil {
		f.Unclaimed.Message = fmt.Sprintf("run %s has Workspace %s; this one is number %d of those that wait", h.Name, ws.Name, max(place, 0)+1)
	}
	return nil
}

func notReady(ws *v1alpha1.Workspace) string {
	text := fmt.Sprintf("Workspace %s is %s", ws.Name, cmp.Or(string(ws.Status.Phase), "new"))
	if c := meta.FindStatusCondition(ws.Status.Conditions, v1alpha1.ConditionWorkspaceReady); c != nil && c.Message != "" {
		text += ": " + c.Message
	}
	return text
}

// Confirm asks the API server whether a run still has its Workspace, before its Job is made.
func (r *Reader) Confirm(ctx context.Context, run *v1alpha1.SandboxRun) error {
	if run.Spec.WorkspaceRef == nil {
		return nil
	}
	ws := &v1alpha1.Workspace{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: run.Namespace, Name: run.Spec.WorkspaceRef.Name}, ws); err != nil {
		return err
	}
	if owned.HolderUID(ws) != string(run.UID) {
		return fmt.Errorf("the run does not have Workspace %s any more", ws.Name)
	}
	return nil
}

// Waiting returns the runs that wait for a Workspace, in the order in which they were made: to the
// second, since Kubernetes keeps no more, and then by name. Those that wait for something else do not count.
func (r *Reader) Waiting(ctx context.Context, ws *v1alpha1.Workspace) (waiting []*v1alpha1.SandboxRun, err error) {
	var list v1alpha1.SandboxRunList
	if err := r.Cached.List(ctx, &list, &client.ListOptions{Namespace: ws.Namespace, UnsafeDisableDeepCopy: new(true)}); err != nil {
		return nil, err
	}
	for i := range list.Items {
		run := &list.Items[i]
		if !Startable(run) || run.Spec.WorkspaceRef == nil || run.Spec.WorkspaceRef.Name != ws.Name || owned.HolderUID(ws) == string(run.UID) {
			continue
		}
		// One that was never looked at counts: it may be older than one that was.
		if run.Status.Phase == "" || meta.IsStatusConditionFalse(run.Status.Conditions, v1alpha1.ConditionWorkspaceBound) &&
			!meta.IsStatusConditionFalse(run.Status.Conditions, v1alpha1.ConditionTemplateResolved) {
			waiting = append(waiting, run)
		}
	}
	slices.SortFunc(waiting, func(a, b *v1alpha1.SandboxRun) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return waiting, nil
}

// Uses asks the API server what still uses a Workspace in the name of a run, "" if nothing does.
func (r *Reader) Uses(ctx context.Context, namespace string, holder *v1alpha1.WorkspaceHolder) (what string, err error) {
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: holder.Name}}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(run), run)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", err
	case err == nil && string(run.UID) == holder.UID && !run.Status.Phase.Terminal():
		return "SandboxRun " + holder.Name, nil
	}
	job := &batchv1.Job{}
	err = r.Live.Get(ctx, owned.Name(run), job)
	if client.IgnoreNotFound(err) != nil {
		return "", err
	}
	if owner := metav1.GetControllerOf(job); err == nil && owner != nil && string(owner.UID) == holder.UID && !owned.IsFinished(job) {
		return "Job " + job.Name + " of SandboxRun " + holder.Name, nil
	}
	run.UID, run.Status.JobUID = types.UID(holder.UID), "" // the run may be gone, or another of its name
	return r.podThatRuns(ctx, owned.PodsOfRun(run))
}

// podThatRuns asks the API server for a Pod that has not ended.
func (r *Reader) podThatRuns(ctx context.Context, pods owned.Pods) (string, error) {
	pod, err := pods.One(ctx, r.Live, true)
	if pod != "" {
		pod = "Pod " + pod
	}
	return pod, err
}
