package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// apply does what was decided, and returns when to look at the request again. The
// RoleBinding goes first: while it cannot be deleted nothing else is done, and the
// next attempt is urgent. Then what happens is recorded, and the rest is done as far as
// possible.
func (r *requests) apply(ctx context.Context, f *facts.Facts, d decision.Decision) (decision.Schedule, error) {
	if d.Dead {
		r.counted.set(f.Key, false)
		r.facts.Forget(f.Key)
	}
	if err := r.unbind(ctx, f, d); err != nil {
		return decision.Schedule{Priority: controller.PriorityEnd}, err
	}
	held := r.holdOn(ctx, f) // whatever the rest: until its Pod is gone
	if err := r.tell(ctx, f, d); err != nil {
		return d.Next, errors.Join(held, err)
	}
	switch {
	case f.Request != nil:
		r.facts.LastRoles.Delete(f.Key)
	case f.LastRole != nil: // and not one that has come since
		r.facts.LastRoles.CompareAndDelete(f.Key, f.LastRole)
	}
	left := errors.Join(held, r.remove(ctx, f, d))
	if held != nil && d.Grant != nil {
		return d.Next, left
	}
	if d.Complete {
		return d.Next, errors.Join(left, r.complete(ctx, f))
	}
	if d.Grant != nil {
		err := r.grant(ctx, f, &d)
		switch {
		case apierrors.IsForbidden(err): // a quota, or a webhook; it may go away
			d.Status, d.Live, d.Waits = decision.NewStatus(f.Request, f.End), false, true
			d.Status.Refused(rules.Refuse(v1alpha1.ReasonNotAllowed, "the API server refuses what a grant consists of: %v", err))
		case err != nil:
			return d.Next, err
		}
	}
	if d.Live {
		r.counted.set(f.Key, true)
	}
	if d.Status != nil {
		left = errors.Join(left, r.write(ctx, f.Request, d.Status))
	}
	if left != nil {
		return d.Next, left
	}
	r.await(f, &d)
	switch {
	case d.Behind:
		return d.Next, f.ErrBehind()
	case d.Discard:
		uid := f.Request.GetUID()
		return decision.Schedule{Priority: d.Next.Priority}, client.IgnoreNotFound(r.Writer.Delete(ctx, f.Request, client.Preconditions{UID: &uid}))
	}
	return d.Next, nil
}

// await sees to what a request waits for.
func (r *requests) await(f *facts.Facts, d *decision.Decision) {
	if d.Check != "" {
		r.checks.Ask(d.Check, f.Subject())
	}
	if d.Dead {
		r.facts.Unbound.Delete(f.Key)
	}
	if d.Waits {
		d.Next = r.sooner(f.Key, d.Next)
	} else {
		r.waits.Forget(f.Key)
	}
}

// complete writes what the template says into a request that was made before it, as
// admission does with others. The request comes back when it is written.
func (r *requests) complete(ctx context.Context, f *facts.Facts) error {
	config, before := f.Template.GetAccessConfig(), f.Request.DeepCopyObject().(v1alpha1.Request)
	spec := f.Request.GetRequestSpec()
	if spec.Duration == "" {
		spec.Duration = config.DefaultDuration
	}
	spec.SingleUse = spec.SingleUse || config.SingleUse
	if spec.Approval == nil {
		spec.Approval = rules.TermsOf(f.Template, spec)
	}
	err := r.Writer.Patch(ctx, f.Request, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing what the template says into %s %s: %w", r.kind.RequestKind, f.Key, err)
	}
	return nil
}

// unbind deletes the RoleBinding. It measures how late, where the time is over.
func (r *requests) unbind(ctx context.Context, f *facts.Facts, d decision.Decision) error {
	if !d.Unbind {
		return nil
	}
	deleted, err := r.deleteByName(ctx, f, &rbacv1.RoleBinding{})
	if err == nil && f.IsKept() {
		err = r.letGo(ctx, f.Binding)
	}
	if err != nil || !d.Late {
		return err
	}
	r.facts.Unbound.Store(f.Key, true)
	if deleted {
		lateness.WithLabelValues(r.kind.Name).Observe(r.Clock.Since(f.End).Seconds())
	}
	return nil
}

// letGo takes its finalizers off a RoleBinding that was deleted, with which it would stay
// in force. A deletion in the foreground adds one, and no webhook is asked about that.
func (r *requests) letGo(ctx context.Context, binding *rbacv1.RoleBinding) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": binding.UID, "finalizers": nil}})
	if err == nil {
		err = r.Writer.Patch(ctx, binding.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking the finalizers off RoleBinding %s/%s: %w", binding.Namespace, binding.Name, err)
	}
	return nil
}

// remove deletes the access Pod, and with it whatever runs in it, or evicts the Pod,
// and deletes the Role when that is done.
func (r *requests) remove(ctx context.Context, f *facts.Facts, d decision.Decision) error {
	if d.Remove.Name != "" {
		if err := r.deletePod(ctx, f, d.Remove); err != nil {
			return err
		}
	}
	if d.Evict.Name != "" {
		if err := r.evict(ctx, f, d); err != nil {
			return err
		}
	}
	if !d.Unrecord {
		return nil
	}
	_, err := r.deleteByName(ctx, f, &rbacv1.Role{})
	return err
}

// doomed reads that very Pod, which is to end; nil if it is gone. Its own grace period counts:
// somebody who deletes it may give it another, and its sessions would go on for days.
func (r *requests) doomed(ctx context.Context, f *facts.Facts, pod grant.Choice) (*corev1.Pod, error) {
	found, err := kube.Get(ctx, r.Live, types.NamespacedName{Namespace: f.Key.Namespace, Name: pod.Name}, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("reading Pod %s/%s: %w", f.Key.Namespace, pod.Name, err)
	}
	if found == nil || found.UID != pod.UID {
		return nil, nil //nolint:nilnil // it is gone
	}
	found.ResourceVersion = "" // whatever has changed since
	return found, nil
}

// deletePod deletes that very Pod, and no other of its name.
func (r *requests) deletePod(ctx context.Context, f *facts.Facts, pod grant.Choice) error {
	object, err := r.doomed(ctx, f, pod)
	if err != nil || object == nil {
		return err
	}
	err = r.Writer.Delete(ctx, object, client.Preconditions{UID: &pod.UID}, &client.DeleteOptions{GracePeriodSeconds: object.Spec.TerminationGracePeriodSeconds})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting Pod %s/%s: %w", f.Key.Namespace, pod.Name, err)
	}
	return nil
}

// evict evicts that very Pod. PodDisruptionBudgets may put it off.
func (r *requests) evict(ctx context.Context, f *facts.Facts, d decision.Decision) error {
	pod, err := r.doomed(ctx, f, d.Evict)
	if err != nil || pod == nil {
		return err
	}
	err = cluster.Evict(ctx, r.Writer, pod)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another Pod has the name, or none
	}
	if err != nil {
		return err
	}
	r.Log.Info("Pod evicted", zap.String("pod", pod.Namespace+"/"+pod.Name))
	if d.Status != nil {
		r.event(f.Request, corev1.EventTypeNormal, "PodEvicted", "End", "Pod %s was evicted, which ends its sessions", pod.Name)
	}
	return nil
}

// deleteByName deletes the Role or RoleBinding of a request, whatever its labels and
// owners: names with our prefix are ours. It reports whether it existed.
func (r *requests) deleteByName(ctx context.Context, f *facts.Facts, object client.Object) (bool, error) {
	resource := r.kind.Resource(f.Key)
	object.SetNamespace(resource.Namespace)
	object.SetName(resource.Name)
	err := r.Writer.Delete(ctx, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("deleting %T %s: %w", object, resource, err)
	}
	return true, nil
}
