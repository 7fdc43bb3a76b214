package access

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// end ends the access of a request. The RoleBinding goes first, since it is what
// gives access, then the access Pod; the rest follows behind those of others
// whose time is over as well.
func (r *requests) end(ctx context.Context, req v1alpha1.Request, end time.Time) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(req)
	urgent, behind := priorityEnd, priorityCleanup
	retry := reconcile.Result{Priority: &urgent}
	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	var binding rbacv1.RoleBinding
	hasBinding, err := r.have(attempt, key, &binding)
	if err != nil {
		return retry, err
	}
	if hasBinding {
		deleted, err := r.deleteByName(attempt, key, &rbacv1.RoleBinding{})
		if err != nil {
			return retry, err
		}
		if deleted {
			r.revoked.Store(key, true)
			lateness.WithLabelValues(r.kind.name).Observe(r.options.Clock.Since(end).Seconds())
			return reconcile.Result{RequeueAfter: cleanupDelay, Priority: &behind}, r.endSession(attempt, key)
		}
	}
	retry.Priority = &behind
	r.counted.set(key, false)
	if _, done := r.revoked.Load(key); !done && !ended(req) {
		// By name, because the cache holds only what has our label.
		if _, err := r.deleteByName(attempt, key, &rbacv1.RoleBinding{}); err != nil {
			return retry, err
		}
	}
	left := r.remove(attempt, key, req)
	state := newState(req, end)
	state.ended(end)
	if err := r.write(attempt, req, state); err != nil || left != nil {
		return retry, errors.Join(left, err)
	}
	r.revoked.Delete(key)
	until := end.Add(r.options.Retention).Sub(r.options.Clock.Now())
	if until > 0 {
		return reconcile.Result{RequeueAfter: until, Priority: &behind}, nil
	}
	uid := req.GetUID()
	return retry, client.IgnoreNotFound(r.writer.Delete(attempt, req, client.Preconditions{UID: &uid}))
}

// use takes the right to further sessions away from a request whose single use
// has begun. The Pod, in which that session is, stays until the end.
func (r *requests) use(ctx context.Context, req v1alpha1.Request, hasBinding bool, state *state) error {
	key := client.ObjectKeyFromObject(req)
	r.counted.set(key, false)
	if hasBinding {
		if _, err := r.deleteByName(ctx, key, &rbacv1.RoleBinding{}); err != nil {
			return err
		}
	}
	state.used()
	return r.write(ctx, req, state)
}

// cleanupDelay keeps the cleaning up out of the way of others' ends. Creation
// times are whole seconds and durations mostly are, so that access ends at whole
// seconds; half a second later there is time for the rest.
const cleanupDelay = 500 * time.Millisecond

// endSession deletes the access Pod, and with it whatever runs in it.
func (r *requests) endSession(ctx context.Context, key types.NamespacedName) error {
	if r.kind.name != podAccess.name {
		return nil
	}
	var role rbacv1.Role
	hasRole, err := r.have(ctx, key, &role)
	if err != nil || !hasRole {
		return err
	}
	return r.deletePod(ctx, chosenPod(&role), role.Namespace)
}

// sweep takes away what a request has that is gone, or is not valid.
func (r *requests) sweep(ctx context.Context, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	var binding rbacv1.RoleBinding
	hasBinding, err := r.have(ctx, key, &binding)
	if err != nil {
		return err
	}
	if hasBinding {
		if _, err := r.deleteByName(ctx, key, &rbacv1.RoleBinding{}); err != nil {
			return err
		}
	}
	return r.remove(ctx, key, nil)
}

// remove removes the Pod, or evicts it if that was chosen, and the Role last: it
// is the record of what there is to do. req is nil when the request is gone.
func (r *requests) remove(ctx context.Context, key types.NamespacedName, req v1alpha1.Request) error {
	var role rbacv1.Role
	hasRole, err := r.have(ctx, key, &role)
	if err != nil {
		return err
	}
	resource := r.kind.resource(key)
	switch {
	case r.kind.name == podAccess.name:
		pod, err := r.madePod(ctx, resource, &role, hasRole, req)
		if err != nil {
			return err
		}
		if err := r.deletePod(ctx, pod, resource.Namespace); err != nil {
			return err
		}
	case hasRole && role.Annotations[AnnotationOnExpiry] == string(v1alpha1.ExpiryEvict):
		if err := r.evict(ctx, chosenPod(&role), resource.Namespace, req); err != nil {
			return err
		}
	}
	if !hasRole && (req == nil || ended(req)) {
		return nil
	}
	_, err = r.deleteByName(ctx, key, &rbacv1.Role{})
	return err
}

// madePod finds the access Pod: by the record, or, where there is no record yet,
// by its owner.
func (r *requests) madePod(ctx context.Context, resource types.NamespacedName, role *rbacv1.Role, hasRole bool, req v1alpha1.Request) (choice, error) {
	if hasRole && chosenPod(role).name == resource.Name {
		return chosenPod(role), nil
	}
	var pod corev1.Pod
	reader := r.cached
	if req != nil && !ended(req) {
		reader = r.live
	}
	if err := reader.Get(ctx, resource, &pod); err != nil {
		return choice{}, client.IgnoreNotFound(err)
	}
	owner := metav1.GetControllerOf(&pod)
	if owner == nil || owner.Kind != r.kind.request || owner.APIVersion != v1alpha1.GroupVersion.String() || req != nil && owner.UID != req.GetUID() {
		return choice{}, nil
	}
	return choice{name: pod.Name, uid: pod.UID}, nil
}

// deletePod deletes that very Pod, and none that has its name.
func (r *requests) deletePod(ctx context.Context, pod choice, namespace string) error {
	if pod.name == "" {
		return nil
	}
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.name}}
	err := r.writer.Delete(ctx, object, client.Preconditions{UID: &pod.uid})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting Pod %s/%s: %w", namespace, pod.name, err)
	}
	return nil
}

// evict evicts that very Pod. PodDisruptionBudgets may put it off.
func (r *requests) evict(ctx context.Context, pod choice, namespace string, req v1alpha1.Request) error {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.name}}
	eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.uid}}}
	err := r.writer.SubResource("eviction").Create(ctx, object, eviction)
	switch {
	case err == nil:
		r.log.Info("Pod evicted", zap.String("pod", namespace+"/"+pod.name))
		if req != nil {
			r.event(req, corev1.EventTypeNormal, "PodEvicted", "End", "Pod %s was evicted, which ends its sessions", pod.name)
		}
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("evicting Pod %s/%s: a PodDisruptionBudget puts it off: %w", namespace, pod.name, err)
	}
	return fmt.Errorf("evicting Pod %s/%s: %w", namespace, pod.name, err)
}

// deleteByName deletes a Role or RoleBinding of a request, whatever its labels
// and owners: names with our prefix are ours. It reports whether it was there.
func (r *requests) deleteByName(ctx context.Context, key types.NamespacedName, object client.Object) (bool, error) {
	resource := r.kind.resource(key)
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
