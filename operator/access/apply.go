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
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// apply does what was decided, and returns when to look at the request again. The
// RoleBinding goes first: while it cannot be deleted nothing else is done, and the
// next attempt is urgent. Then what happens is recorded, and the rest is done as far as
// possible.
func (r *requests) apply(ctx context.Context, f *facts, d decision) (schedule, error) {
	if d.dead {
		r.counted.set(f.key, false)
		r.promises.forget(f.key)
	}
	if err := r.unbind(ctx, f, d); err != nil {
		return schedule{priority: controller.PriorityEnd}, err
	}
	held := r.holdOn(ctx, f) // whatever the rest: until its Pod is gone
	if err := r.tell(ctx, f, d); err != nil {
		return d.next, errors.Join(held, err)
	}
	r.lastRoles.Delete(f.key)
	left := errors.Join(held, r.remove(ctx, f, d))
	if held != nil && d.grant != nil {
		return d.next, left
	}
	if d.complete {
		return d.next, errors.Join(left, r.complete(ctx, f))
	}
	if d.grant != nil {
		err := r.grant(ctx, f, &d)
		switch {
		case apierrors.IsForbidden(err): // a quota, or a webhook; it may go away
			d.status, d.live, d.waits = newState(f.request, f.end), false, true
			d.status.refused(refuse(v1alpha1.ReasonNotAllowed, "the API server refuses what a grant consists of: %v", err))
		case err != nil:
			return d.next, err
		}
	}
	if d.live {
		r.counted.set(f.key, true)
	}
	if d.status != nil {
		left = errors.Join(left, r.write(ctx, f.request, d.status))
	}
	if left != nil {
		return d.next, left
	}
	r.await(f, &d)
	switch {
	case d.behind:
		return d.next, r.errBehind(f)
	case d.discard:
		uid := f.request.GetUID()
		return schedule{priority: d.next.priority}, client.IgnoreNotFound(r.writer.Delete(ctx, f.request, client.Preconditions{UID: &uid}))
	}
	return d.next, nil
}

// await sees to what a request waits for.
func (r *requests) await(f *facts, d *decision) {
	if d.check != "" {
		r.checks.ask(d.check, f.question())
	}
	if d.dead {
		r.unbound.Delete(f.key)
	}
	if d.waits {
		d.next = r.sooner(f.key, d.next)
	} else {
		r.waits.Forget(f.key)
	}
}

// complete writes what the template says into a request that was made before it, as
// [defaulter] does with others. The request comes back when it is written.
func (r *requests) complete(ctx context.Context, f *facts) error {
	config, before := f.template.GetAccessConfig(), f.request.DeepCopyObject().(v1alpha1.Request)
	spec := f.request.GetRequestSpec()
	if spec.Duration == "" {
		spec.Duration = config.DefaultDuration
	}
	spec.SingleUse = spec.SingleUse || config.SingleUse
	if spec.Approval == nil {
		spec.Approval = termsOf(f.template, spec)
	}
	err := r.writer.Patch(ctx, f.request, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing what the template says into %s %s: %w", r.kind.request, f.key, err)
	}
	return nil
}

// unbind deletes the RoleBinding. It measures how late, where the time is over.
func (r *requests) unbind(ctx context.Context, f *facts, d decision) error {
	if !d.unbind {
		return nil
	}
	deleted, err := r.deleteByName(ctx, f, &rbacv1.RoleBinding{})
	if err == nil && f.isKept() {
		err = r.letGo(ctx, f.binding)
	}
	if err != nil || !d.late {
		return err
	}
	r.unbound.Store(f.key, true)
	if deleted {
		lateness.WithLabelValues(r.kind.name).Observe(r.options.Clock.Since(f.end).Seconds())
	}
	return nil
}

// letGo takes its finalizers off a RoleBinding that was deleted, with which it would stay
// in force. A deletion in the foreground adds one, and no webhook is asked about that.
func (r *requests) letGo(ctx context.Context, binding *rbacv1.RoleBinding) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": binding.UID, "finalizers": nil}})
	if err == nil {
		err = r.writer.Patch(ctx, binding.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking the finalizers off RoleBinding %s/%s: %w", binding.Namespace, binding.Name, err)
	}
	return nil
}

// remove deletes the access Pod, and with it whatever runs in it, or evicts the Pod,
// and deletes the Role when that is done.
func (r *requests) remove(ctx context.Context, f *facts, d decision) error {
	if d.remove.name != "" {
		if err := r.deletePod(ctx, f, d.remove); err != nil {
			return err
		}
	}
	if d.evict.name != "" {
		if err := r.evict(ctx, f, d); err != nil {
			return err
		}
	}
	if !d.unrecord {
		return nil
	}
	_, err := r.deleteByName(ctx, f, &rbacv1.Role{})
	return err
}

// doomed reads that very Pod, which is to end; nil if it is gone. Its own grace period counts:
// somebody who deletes it may give it another, and its sessions would go on for days.
func (r *requests) doomed(ctx context.Context, f *facts, pod choice) (*corev1.Pod, error) {
	found, err := get(ctx, r.live, types.NamespacedName{Namespace: f.key.Namespace, Name: pod.name}, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("reading Pod %s/%s: %w", f.key.Namespace, pod.name, err)
	}
	if found == nil || found.UID != pod.uid {
		return nil, nil //nolint:nilnil // it is gone
	}
	found.ResourceVersion = "" // whatever has changed since
	return found, nil
}

// deletePod deletes that very Pod, and no other of its name.
func (r *requests) deletePod(ctx context.Context, f *facts, pod choice) error {
	object, err := r.doomed(ctx, f, pod)
	if err != nil || object == nil {
		return err
	}
	err = r.writer.Delete(ctx, object, client.Preconditions{UID: &pod.uid}, &client.DeleteOptions{GracePeriodSeconds: object.Spec.TerminationGracePeriodSeconds})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting Pod %s/%s: %w", f.key.Namespace, pod.name, err)
	}
	return nil
}

// evict evicts that very Pod. PodDisruptionBudgets may put it off.
func (r *requests) evict(ctx context.Context, f *facts, d decision) error {
	pod, err := r.doomed(ctx, f, d.evict)
	if err != nil || pod == nil {
		return err
	}
	err = cluster.Evict(ctx, r.writer, pod)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another Pod has the name, or none
	}
	if err != nil {
		return err
	}
	r.log.Info("Pod evicted", zap.String("pod", pod.Namespace+"/"+pod.Name))
	if d.status != nil {
		r.event(f.request, corev1.EventTypeNormal, "PodEvicted", "End", "Pod %s was evicted, which ends its sessions", pod.Name)
	}
	return nil
}

// deleteByName deletes the Role or RoleBinding of a request, whatever its labels and
// owners: names with our prefix are ours. It reports whether it existed.
func (r *requests) deleteByName(ctx context.Context, f *facts, object client.Object) (bool, error) {
	resource := r.kind.resource(f.key)
	object.SetNamespace(resource.Namespace)
	object.SetName(resource.Name)
	err := r.writer.Delete(ctx, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("deleting %T %s: %w", object, resource, err)
	}
	return true, nil
}

// errBehind is not logged: what the cache lacks is on its way.
func (r *requests) errBehind(f *facts) error {
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource(r.kind.request).GroupResource(), f.key.Name, errors.New("the cache is behind"))
}
