package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/permission"
	"github.com/admitkit/admitkit/operator/internal/truncate"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/decision"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// apply does what was decided. A policy that was withdrawn comes back first.
func (r *runs) apply(ctx context.Context, f *facts.Facts, d *decision.Decision) error {
	if d.Unrestored != nil {
		return d.Unrestored
	}
	if d.Restore != nil {
		if err := r.restore(ctx, f, d.Restore); err != nil {
			return err
		}
	}
	if err := r.deleteOrphans(ctx, f.Orphans, func(pod *corev1.Pod) { r.tellOrphan(ctx, f.Run, pod) }); err != nil {
		return err
	}
	if f.Job != nil {
		if err := errors.Join(r.keep(ctx, f.Run), r.tend(ctx, f, d)); err != nil {
			return err
		}
	}
	if d.End {
		if err := r.end(ctx, f.Job); err != nil {
			return err
		}
	}
	if d.Start {
		if err := r.start(ctx, f, d); err != nil {
			return err
		}
	}
	if err := r.discardSecrets(ctx, f.Run, &d.Status); err != nil {
		return err
	}
	if !f.Run.Status.Phase.Terminal() || f.Run.Status.Output == "" {
		d.Status.Output = truncate.Text(r.lender.Given.Redact(f.Run.UID, f.Run.Status.Credentials, d.Status.Output), decision.MaxOutput)
	} else { // what was given may not be known any more
		d.Status.Output = f.Run.Status.Output
	}
	if err := r.write(ctx, f.Run, &d.Status); err != nil {
		return err
	}
	switch {
	case d.Release:
		r.lender.Given.Forget(f.Run.UID)
		r.revoke(ctx, f.Run)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout) // that may have taken its time
		defer cancel()
		return r.release(ctx, f.Run)
	case d.Discard:
		uid := f.Run.UID
		return client.IgnoreNotFound(r.writer.Delete(ctx, f.Run, client.Preconditions{UID: &uid}))
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
// its egress, the prompt, and the policy.
func (r *runs) start(ctx context.Context, f *facts.Facts, d *decision.Decision) error {
	if err := r.keep(ctx, f.Run); err != nil {
		return err
	}
	err := r.makePrompt(ctx, f.Run, &d.Status)
	if f.Run.Status.Egress == nil || f.Run.Status.PromptSecret != d.Status.PromptSecret {
		if err := r.write(ctx, f.Run, &d.Status); err != nil {
			return err
		}
	}
	if err == nil {
		err = r.hold(ctx, f)
	}
	job := f.Plan.Job(f.Run)
	if err == nil && f.Proxied != nil {
		r.proxyOf(f).Into(job)
		err = r.equip(ctx, f, d)
	}
	if err == nil {
		err = r.facts.Confirm(ctx, f.Run)
	}
	if err == nil {
		err = r.makeJob(ctx, f.Run, job)
	}
	now, taken, blocked := r.options.Clock.Now(), &owned.TakenError{}, (*conditions.Obstacle)(nil)
	switch {
	case errors.As(err, &blocked):
		d.Wait(f.Run, blocked, now)
		return nil
	case errors.As(err, &taken):
		d.Wait(f.Run, &conditions.Obstacle{Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxNameTaken, Message: taken.Error(), Poll: true}, now)
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err): // a quota, Pod Security, or a webhook
		d.Wait(f.Run, &conditions.Obstacle{Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxRefused, Message: err.Error(), Poll: true}, now)
		return nil
	case err != nil:
		return fmt.Errorf("starting SandboxRun %s/%s: %w", f.Run.Namespace, f.Run.Name, err)
	}
	f.Job, f.Unproven = job, false
	d.SeeJob(f, now)
	return nil
}

// makePrompt asks about a prompt that is elsewhere. It makes the Secret with one by value, and names it in the status only then: nobody else knows its name
// before, so that one which is there was made by an attempt before.
func (r *runs) makePrompt(ctx context.Context, run *v1alpha1.SandboxRun, status *v1alpha1.SandboxRunStatus) error {
	if from := run.Spec.PromptFrom; from != nil {
		return r.confirmPrompt(ctx, run, from)
	}
	name := cmp.Or(status.PromptSecret, owned.PromptName(run, r.promptKey))
	if err := r.writer.Create(ctx, workload.Prompt(run, name)); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	status.PromptSecret = name
	return nil
}

// confirmPrompt returns an obstacle unless the author of a run still may read what its prompt comes from: the run may have
// waited for long, and what is read is what is there now.
func (r *runs) confirmPrompt(ctx context.Context, run *v1alpha1.SandboxRun, from *v1alpha1.SandboxPromptSource) error {
	what := authorizationv1.ResourceAttributes{Namespace: run.Namespace, Verb: "get", Version: "v1", Resource: "configmaps"}
	if from.SecretKeyRef != nil {
		what.Resource, what.Name = "secrets", from.SecretKeyRef.Name
	} else {
		what.Name = from.ConfigMapKeyRef.Name
	}
	author := authenticationv1.UserInfo{}
	if run.Spec.Author != nil {
		author = run.Spec.Author.UserInfo()
	}
	if r.options.Clock.Since(run.CreationTimestamp.Time) > permission.GroupsLast {
		author = permission.Former(author)
	}
	may, err := permission.May(ctx, r.writer, author, what)
	if err != nil || may {
		return err
	}
	return &conditions.Obstacle{
		Condition: v1alpha1.ConditionJobCreated, Reason: v1alpha1.SandboxRefused, Poll: true,
		Message: fmt.Sprintf("spec.promptFrom: the author, user %q, has not the right to get %s %s any more: give it back, or make another run", author.Username, what.Resource, what.Name),
	}
}

// makeJob makes the Job. One that is there already was made by an attempt that did not get to the status, or by somebody
// who wants another to run in the run's name: it is the run's only if it is the same.
func (r *runs) makeJob(ctx context.Context, run *v1alpha1.SandboxRun, job *batchv1.Job) error {
	want := job.DeepCopy()
	err := r.writer.Create(ctx, job)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := r.adopt(ctx, run, "Job", job); err != nil {
		return err
	}
	return r.prove(ctx, job, want)
}

// prove deletes a Job that is not as it is to be, and says so.
func (r *runs) prove(ctx context.Context, there, want *batchv1.Job) error {
	if r.isSameJob(ctx, there, want) {
		return nil
	}
	if err := r.end(ctx, there); err != nil {
		return err
	}
	return fmt.Errorf("Job %s/%s says that it is ours, and is not the one that is to run: it is deleted", there.Namespace, there.Name)
}

// isSameJob reports whether a Job is as the API server would make another. It compares all that the API server fills in,
// since every field of a Pod is one by which somebody could have it do more.
func (r *runs) isSameJob(ctx context.Context, there, want *batchv1.Job) bool {
	want = want.DeepCopy()
	want.Name, want.GenerateName = "", want.Name+"-"
	if err := r.writer.Create(ctx, want, client.DryRunAll); err != nil { // then nobody knows
		r.log.Warn("a Job cannot be compared", zap.String("job", there.Namespace+"/"+there.Name), zap.Error(err))
		return false
	}
	return apiequality.Semantic.DeepEqual(specOf(there), specOf(want))
}

// specOf is the spec of a Job without what each has of its own.
func specOf(job *batchv1.Job) *batchv1.JobSpec {
	spec := job.Spec.DeepCopy()
	spec.Selector = nil
	for _, key := range []string{batchv1.JobNameLabel, batchv1.ControllerUidLabel, "job-name", "controller-uid"} {
		delete(spec.Template.Labels, key)
	}
	return spec
}

// adopt reads the object that has the name of ours, and wants it to be the run's.
func (r *runs) adopt(ctx context.Context, run *v1alpha1.SandboxRun, kind string, there client.Object) error {
	if err := r.live.Get(ctx, owned.Name(run), there); err != nil {
		return err
	}
	if !owned.Is(there, owned.ByRun(run)) {
		return &owned.TakenError{Kind: kind, Name: owned.Name(run).String()}
	}
	return nil
}

// keep puts the finalizer on a run.
func (r *runs) keep(ctx context.Context, run *v1alpha1.SandboxRun) error {
	if owned.HasFinalizer(run) || !run.DeletionTimestamp.IsZero() {
		return nil
	}
	return r.setFinalizers(ctx, run, append(run.Finalizers, v1alpha1.FinalizerSandboxRun))
}

// release takes the finalizer away, if the API server says, too, that nothing runs any more: what is
// left would be without its policy.
func (r *runs) release(ctx context.Context, run *v1alpha1.SandboxRun) error {
	if err := r.isFree(ctx, run); err != nil {
		return err
	}
	return r.dropFinalizer(ctx, run, v1alpha1.FinalizerSandboxRun)
}

// isFree returns an error while a run has Pods.
func (r *runs) isFree(ctx context.Context, run *v1alpha1.SandboxRun) error {
	pods := owned.PodsOfRun(run)
	pod, err := pods.One(ctx, r.live, false)
	switch {
	case err != nil:
		return fmt.Errorf("looking for Pods of SandboxRun %s/%s: %w", run.Namespace, run.Name, err)
	case pod != "":
		return fmt.Errorf("SandboxRun %s/%s: %w: %s", run.Namespace, run.Name, errWaits, pod)
	}
	return nil
}

// dropFinalizer takes a finalizer away.
func (r *runs) dropFinalizer(ctx context.Context, object client.Object, finalizer string) error {
	return client.IgnoreNotFound(r.setFinalizers(ctx, object, slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == finalizer })))
}

func (r *runs) setFinalizers(ctx context.Context, object client.Object, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers, "uid": object.GetUID(), "resourceVersion": object.GetResourceVersion()}})
	if err != nil {
		return err
	}
	return r.writer.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
}

// write writes the status, if it changed, and records then what is new: a write that fails, as for
// a conflict, records nothing.
func (r *runs) write(ctx context.Context, run *v1alpha1.SandboxRun, status *v1alpha1.SandboxRunStatus) error {
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
