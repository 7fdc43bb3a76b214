package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// apply does what was decided. A policy that was withdrawn comes back first.
func (r *runs) apply(ctx context.Context, f *facts, d *decision) error {
	if d.restore != nil {
		if err := r.restore(ctx, f, d.restore); err != nil {
			return err
		}
	}
	if f.job != nil && f.run.DeletionTimestamp.IsZero() {
		if err := r.keep(ctx, f.run); err != nil {
			return err
		}
	}
	if d.end {
		if err := r.end(ctx, f.job); err != nil {
			return err
		}
	}
	if d.start {
		if err := r.start(ctx, f, d); err != nil {
			return err
		}
	}
	if err := r.write(ctx, f.run, &d.status); err != nil {
		return err
	}
	switch {
	case d.release:
		return r.release(ctx, f.run)
	case d.discard:
		uid := f.run.UID
		return client.IgnoreNotFound(r.writer.Delete(ctx, f.run, client.Preconditions{UID: &uid}))
	}
	return nil
}

// end deletes a Job. It stays until its Pods are gone, so that it makes no more.
func (r *runs) end(ctx context.Context, job *batchv1.Job) error {
	uid := job.UID
	err := r.writer.Delete(ctx, job, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationForeground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

// start makes the Job of a run, and before it what must be there: the finalizer, the decision about
// its egress, the policy, and the prompt.
func (r *runs) start(ctx context.Context, f *facts, d *decision) error {
	if err := r.keep(ctx, f.run); err != nil {
		return err
	}
	if f.run.Status.Egress == nil {
		if err := r.write(ctx, f.run, &d.status); err != nil {
			return err
		}
	}
	err := r.hold(ctx, f, d.status.Egress)
	if err == nil && f.run.Spec.PromptFrom == nil {
		err = r.makePrompt(ctx, f.run)
	}
	job := f.plan.jobOf(f.run)
	if err == nil {
		err = r.makeJob(ctx, f.run, job)
	}
	now, taken := r.options.Clock.Now(), &takenError{}
	switch {
	case errors.As(err, &taken):
		d.wait(f.run, &obstacle{v1alpha1.ConditionJobCreated, v1alpha1.HarnessNameTaken, taken.Error(), true}, now)
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err): // a quota, Pod Security, or a webhook
		d.wait(f.run, &obstacle{v1alpha1.ConditionJobCreated, v1alpha1.HarnessRefused, err.Error(), true}, now)
		return nil
	case err != nil:
		return fmt.Errorf("starting HarnessRun %s/%s: %w", f.run.Namespace, f.run.Name, err)
	}
	f.job = job
	f.seeJob(d, now)
	return nil
}

// makePrompt makes the ConfigMap with the prompt.
func (r *runs) makePrompt(ctx context.Context, run *v1alpha1.HarnessRun) error {
	err := r.writer.Create(ctx, promptOf(run))
	if apierrors.IsAlreadyExists(err) {
		there := &metav1.PartialObjectMetadata{}
		there.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		return r.adopt(ctx, run, "ConfigMap", there)
	}
	return err
}

// makeJob makes the Job. One that is there already was made by an attempt that did not get to the status.
func (r *runs) makeJob(ctx context.Context, run *v1alpha1.HarnessRun, job *batchv1.Job) error {
	err := r.writer.Create(ctx, job)
	if apierrors.IsAlreadyExists(err) {
		return r.adopt(ctx, run, "Job", job)
	}
	return err
}

// adopt reads the object that has the name of ours, and wants it to be the run's.
func (r *runs) adopt(ctx context.Context, run *v1alpha1.HarnessRun, kind string, there client.Object) error {
	if err := r.live.Get(ctx, nameOf(run), there); err != nil {
		return err
	}
	if !metav1.IsControlledBy(there, run) {
		return &takenError{kind, nameOf(run).String()}
	}
	return nil
}

// keep puts the finalizer on a run.
func (r *runs) keep(ctx context.Context, run *v1alpha1.HarnessRun) error {
	if hasFinalizer(run) {
		return nil
	}
	return r.setFinalizers(ctx, run, append(run.Finalizers, v1alpha1.FinalizerHarnessRun))
}

// release takes the finalizer away, if the API server says, too, that nothing runs any more: what is
// left would be without its policy.
func (r *runs) release(ctx context.Context, run *v1alpha1.HarnessRun) error {
	pod, err := onePod(ctx, r.live, client.InNamespace(run.Namespace), client.MatchingLabels{v1alpha1.LabelEgress: string(run.UID)})
	switch {
	case err != nil:
		return fmt.Errorf("looking for Pods of HarnessRun %s/%s: %w", run.Namespace, run.Name, err)
	case pod != "":
		return fmt.Errorf("HarnessRun %s/%s: %w: %s", run.Namespace, run.Name, errWaits, pod)
	}
	return client.IgnoreNotFound(r.setFinalizers(ctx, run, withoutOurs(run.Finalizers)))
}

func withoutOurs(finalizers []string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == v1alpha1.FinalizerHarnessRun })
}

func (r *runs) setFinalizers(ctx context.Context, run *v1alpha1.HarnessRun, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers, "uid": run.UID, "resourceVersion": run.ResourceVersion}})
	if err != nil {
		return err
	}
	return r.writer.Patch(ctx, run, client.RawPatch(types.MergePatchType, patch))
}

// write writes the status, if it changed, and records then what is new: a write that fails, as for
// a conflict, records nothing.
func (r *runs) write(ctx context.Context, run *v1alpha1.HarnessRun, status *v1alpha1.HarnessRunStatus) error {
	before := run.DeepCopy()
	if apiequality.Semantic.DeepEqual(&before.Status, status) {
		return nil
	}
	run.Status = *status.DeepCopy()
	if err := r.writer.Status().Patch(ctx, run, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.tellTransition(ctx, run, &before.Status, status)
	return nil
}
