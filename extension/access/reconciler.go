package access

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// requests reconciles the requests of one kind.
type requests struct {
	*Access
	kind kind

	// failures and waits delay the next attempt. The queue's own limiter would
	// not do: the end of access must not wait for it.
	failures, waits workqueue.TypedRateLimiter[reconcile.Request]
	counted         liveGrants
	// revoked has the requests whose RoleBinding this process has deleted, until
	// the rest is done.
	revoked sync.Map
}

var _ extension.Reconciler = (*requests)(nil)

func newRequests(a *Access, k kind) *requests {
	return &requests{
		Access: a, kind: k,
		failures: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](20*time.Millisecond, time.Second),
		waits:    workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, 5*time.Second),
		counted:  liveGrants{kind: k.name, keys: map[types.NamespacedName]bool{}},
	}
}

// Priorities of requests in the queue: those whose access is to end go first,
// and what is left of those that have ended comes last. Otherwise the cleaning
// up after the first would delay the end of the last.
const (
	priorityEnd     = 100
	priorityNormal  = 0
	priorityInitial = -50
	priorityCleanup = -100
)

// attemptTimeout bounds one attempt, so that an API server that does not answer
// holds a worker no longer than that.
const attemptTimeout = 10 * time.Second

// Register makes the controller. It watches requests, templates, and what
// requests get; see enqueue for the order in which they come.
func (r *requests) Register(mgr extension.Manager) error {
	if err := r.setup(mgr); err != nil {
		return err
	}
	warm := true // a replica that waits to lead has its cache, and so loses no time
	c, err := controller.New("access-"+r.kind.name+"-requests", mgr.GetKubeManager(), controller.Options{
		Reconciler: r, MaxConcurrentReconciles: r.options.Workers, EnableWarmup: &warm,
	})
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	template := r.kind.newTemplate()
	watches := map[client.Object]func(context.Context, client.Object) []types.NamespacedName{
		r.kind.newRequest():   r.keyOf,
		template:              r.waitingFor,
		&rbacv1.Role{}:        r.ownerOf,
		&rbacv1.RoleBinding{}: r.ownerOf,
	}
	if r.kind.name == podAccess.name {
		watches[&corev1.Pod{}] = r.ownerOf
	}
	for object, keys := range watches {
		if err := c.Watch(source.Kind(r.cluster.GetCache(), object, r.enqueue(keys))); err != nil {
			return fmt.Errorf("access: %w", err)
		}
	}
	return nil
}

// Reconcile makes of a request what is to be at this moment, and comes back at
// the moment at which that changes.
func (r *requests) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if err == nil {
		r.failures.Forget(key)
		return result, nil
	}
	if ctx.Err() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // the manager stops
	}
	delay := r.failures.When(key)
	if !apierrors.IsConflict(err) { // else the cache is behind: what it lacks is on its way
		r.log.Warn("attempt failed", zap.String("kind", r.kind.request), zap.Stringer("request", key), zap.Duration("retry", delay), zap.Error(err))
	}
	if result.RequeueAfter > 0 {
		delay = min(delay, result.RequeueAfter)
	}
	return reconcile.Result{RequeueAfter: delay, Priority: result.Priority}, nil
}

func (r *requests) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	req := r.kind.newRequest()
	if err := r.cached.Get(ctx, key.NamespacedName, req); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, err
		}
		r.counted.set(key.NamespacedName, false)
		r.revoked.Delete(key.NamespacedName)
		r.waits.Forget(key)
		return reconcile.Result{}, r.sweep(ctx, key.NamespacedName)
	}
	if !req.GetDeletionTimestamp().IsZero() {
		r.counted.set(key.NamespacedName, false)
		return reconcile.Result{}, r.sweep(ctx, key.NamespacedName)
	}
	// The end comes first: it needs nothing but the request itself.
	end, err := v1alpha1.EndOf(req)
	if err != nil {
		return reconcile.Result{}, r.refuse(ctx, req, v1alpha1.ConditionAccessDurationsValid, refuse(v1alpha1.ReasonDurationInvalid, "%v", err))
	}
	remaining := end.Sub(r.options.Clock.Now())
	if remaining <= 0 {
		r.waits.Forget(key)
		return r.end(ctx, req, end)
	}
	attempt, cancel := context.WithTimeout(ctx, min(remaining, attemptTimeout))
	defer cancel()
	wait, err := r.grant(attempt, req, end)
	next := r.untilEnd(end)
	if err == nil && wait {
		// What is waited for belongs to somebody else and is not watched: the
		// cache would grow with the cluster. The intervals grow instead.
		if delay := r.waits.When(key); delay < next.RequeueAfter {
			next = reconcile.Result{RequeueAfter: delay}
		}
	}
	return next, err
}

// untilEnd comes back at the very moment at which access ends.
func (r *requests) untilEnd(end time.Time) reconcile.Result {
	priority := priorityEnd
	return reconcile.Result{RequeueAfter: max(end.Sub(r.options.Clock.Now()), time.Nanosecond), Priority: &priority}
}

// grant gives what the request asks for, or as much of it as is possible now. It
// reports whether it waits for something that it will not be told of.
func (r *requests) grant(ctx context.Context, req v1alpha1.Request, end time.Time) (wait bool, err error) {
	key := client.ObjectKeyFromObject(req)
	var role rbacv1.Role
	var binding rbacv1.RoleBinding
	hasRole, err := r.have(ctx, key, &role)
	if err != nil {
		return false, err
	}
	hasBinding, err := r.have(ctx, key, &binding)
	if err != nil {
		return false, err
	}
	other := func(object client.Object) bool {
		return object.GetAnnotations()[AnnotationRequestUID] != string(req.GetUID())
	}
	if hasRole && other(&role) || hasBinding && other(&binding) {
		// Left by a request of the same name that is gone.
		if err := r.sweep(ctx, key); err != nil {
			return false, err
		}
		return false, r.errBehind(key)
	}
	state := newState(req, end)
	if state.UsedBy != nil {
		return false, r.use(ctx, req, hasBinding, state)
	}
	if !hasRole {
		made, wait, err := r.choose(ctx, req, state)
		if made == nil || err != nil {
			if err != nil {
				return wait, err
			}
			return wait, r.write(ctx, req, state)
		}
		role = *made
	}
	if !hasBinding {
		gone := ""
		if hasRole { // the garbage collector may have removed it with the Pod
			if gone, err = r.gone(ctx, req, &role); err != nil {
				return false, err
			}
		}
		if gone != "" {
			state.podGone(chosenPod(&role).name, gone)
			r.counted.set(key, false)
			return false, r.write(ctx, req, state)
		}
		if r.options.Clock.Now().After(end) {
			return false, nil
		}
		made, err := newBinding(r.kind, req, &role)
		if err != nil {
			return false, err
		}
		if err := r.createBinding(ctx, made); err != nil {
			return false, fmt.Errorf("creating RoleBinding %s/%s: %w", made.Namespace, made.Name, err)
		}
	}
	r.counted.set(key, true)
	if err := r.observe(ctx, req, &role, state); err != nil {
		return false, err
	}
	return false, r.write(ctx, req, state)
}

// choose chooses or makes the Pod and records the choice in the Role. It returns
// no Role when the request cannot be granted, or not yet, and state says why.
func (r *requests) choose(ctx context.Context, req v1alpha1.Request, state *state) (role *rbacv1.Role, wait bool, err error) {
	spec := req.GetRequestSpec()
	t := r.kind.newTemplate()
	err = r.cached.Get(ctx, types.NamespacedName{Namespace: req.GetNamespace(), Name: spec.TemplateName}, t)
	if apierrors.IsNotFound(err) {
		state.refused(v1alpha1.ConditionTargetTemplateExists, refuse(v1alpha1.ReasonTemplateMissing, "%s %s/%s does not exist", r.kind.template, req.GetNamespace(), spec.TemplateName))
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	state.set(v1alpha1.ConditionTargetTemplateExists, true, "Found", "")
	if refused := allows(t.GetAccessConfig(), spec.TemplateName, spec); refused != nil {
		condition := v1alpha1.ConditionAccessResourcesCreated
		if refused.reason == v1alpha1.ReasonDurationInvalid || refused.reason == v1alpha1.ReasonDurationTooLong || refused.reason == v1alpha1.ReasonTemplateInvalid {
			condition = v1alpha1.ConditionAccessDurationsValid
		}
		state.refused(condition, refused)
		return nil, false, nil
	}
	state.set(v1alpha1.ConditionAccessDurationsValid, true, "Valid", "")
	var pod *corev1.Pod
	if t, ok := t.(*v1alpha1.PodAccessTemplate); ok {
		pod, err = r.accessPod(ctx, req, t, state)
	} else {
		pod, err = r.targetPod(ctx, req, t)
	}
	var refused *refusal
	switch {
	case errors.Is(err, errNoPod):
		state.waiting(v1alpha1.ReasonNoPod, err.Error())
		return nil, true, nil
	case errors.As(err, &refused):
		state.refused(v1alpha1.ConditionAccessResourcesCreated, refused)
		return nil, true, nil
	case missing(err):
		state.waiting(v1alpha1.ReasonTargetMissing, err.Error())
		return nil, true, nil
	case err != nil:
		return nil, false, err
	}
	// Whatever may be wrong with the command is wrong before access is granted.
	if state.message, err = accessCommand(t.GetAccessConfig(), &pod.ObjectMeta); err != nil {
		state.refused(v1alpha1.ConditionAccessMessage, refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", spec.TemplateName, err))
		if r.kind.name == podAccess.name {
			return nil, false, r.deletePod(ctx, choice{name: pod.Name, uid: pod.UID}, pod.Namespace)
		}
		return nil, false, nil
	}
	if role, err = newRole(r.kind, req, t.GetAccessConfig(), pod); err != nil {
		return nil, false, err
	}
	role.Annotations[annotationMessage] = state.message
	if role, err = r.createRole(ctx, role); err != nil {
		return nil, false, fmt.Errorf("creating Role: %w", err)
	}
	return role, false, nil
}

// annotationMessage has the access command, made when access was granted.
const annotationMessage = "admitkit.dev/access-message"

// targetPod chooses a Pod of the template's target.
func (r *requests) targetPod(ctx context.Context, req v1alpha1.Request, t v1alpha1.Template) (*corev1.Pod, error) {
	target, err := findWorkload(ctx, r.live, req.GetNamespace(), *t.GetTargetRef())
	if err != nil {
		return nil, err
	}
	return target.choosePod(ctx, r.live, req.GetTargetPod())
}

// accessPod makes the access Pod, or finds the one that an earlier run made.
func (r *requests) accessPod(ctx context.Context, req v1alpha1.Request, t *v1alpha1.PodAccessTemplate, state *state) (*corev1.Pod, error) {
	var target *workload
	var err error
	if ref := t.Spec.ControllerTargetRef; ref != nil {
		if target, err = findWorkload(ctx, r.live, req.GetNamespace(), *ref); err != nil {
			return nil, err
		}
	}
	pod, err := newPod(t, target)
	if err != nil {
		return nil, refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err)
	}
	limit, err := maxDuration(&t.Spec.AccessConfig)
	if err != nil {
		return nil, refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err)
	}
	backstop(&pod.Spec, limit)
	meta := r.kind.meta(req)
	meta.OwnerReferences = []metav1.OwnerReference{r.kind.ownedBy(req)}
	meta.Labels, meta.Annotations = merged(pod.Labels, meta.Labels), merged(pod.Annotations, meta.Annotations)
	pod.ObjectMeta = meta
	if _, err := accessCommand(&t.Spec.AccessConfig, &pod.ObjectMeta); err != nil {
		// Before the Pod is there, since it could not be used.
		state.set(v1alpha1.ConditionAccessMessage, false, v1alpha1.ReasonTemplateInvalid, err.Error())
		return nil, refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err)
	}
	err = r.writer.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		key := client.ObjectKeyFromObject(pod)
		if err := r.live.Get(ctx, key, pod); err != nil {
			return nil, err
		}
		if owner := metav1.GetControllerOf(pod); owner == nil || owner.UID != req.GetUID() {
			return nil, refuse(v1alpha1.ReasonNameTaken, "Pod %s/%s exists and does not belong to this request", key.Namespace, key.Name)
		}
		return pod, nil
	}
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		return nil, refuse(v1alpha1.ReasonPodRefused, "the API server refuses the access Pod: %v", err)
	}
	return pod, err
}

// gone says what has become of the chosen Pod when it is not there any more.
func (r *requests) gone(ctx context.Context, req v1alpha1.Request, role *rbacv1.Role) (string, error) {
	pod := chosenPod(role)
	found := &metav1.PartialObjectMetadata{}
	found.APIVersion, found.Kind = "v1", "Pod"
	err := r.live.Get(ctx, types.NamespacedName{Namespace: req.GetNamespace(), Name: pod.name}, found)
	switch {
	case apierrors.IsNotFound(err):
		return "is gone", nil
	case err != nil:
		return "", err
	case found.UID != pod.uid:
		return "was replaced by another of the same name", nil
	}
	return "", nil
}

// observe completes the state of a request that is granted.
func (r *requests) observe(ctx context.Context, req v1alpha1.Request, role *rbacv1.Role, state *state) error {
	pod := chosenPod(role)
	state.granted(pod.name, role.Annotations[annotationMessage])
	if r.kind.name == execAccess.name {
		// It was ready when it was chosen, and when it is gone the RoleBinding is.
		state.set(v1alpha1.ConditionAccessResourcesReady, true, "PodReady", "")
		return nil
	}
	var own corev1.Pod
	err := r.cached.Get(ctx, types.NamespacedName{Namespace: req.GetNamespace(), Name: pod.name}, &own)
	switch {
	case apierrors.IsNotFound(err):
		// Not in the cache yet, or not any more; its event tells.
		gone, err := r.gone(ctx, req, role)
		if err != nil {
			return err
		}
		if gone != "" {
			state.podGone(pod.name, gone)
			return nil
		}
		state.set(v1alpha1.ConditionAccessResourcesReady, false, v1alpha1.ReasonPodNotReady, "the Pod is not ready yet")
	case err != nil:
		return err
	case own.UID != pod.uid:
		state.podGone(pod.name, "was replaced by another of the same name")
	case own.Status.Phase == corev1.PodFailed || own.Status.Phase == corev1.PodSucceeded:
		state.set(v1alpha1.ConditionAccessResourcesReady, false, v1alpha1.ReasonPodEnded, "the Pod has ended: "+own.Status.Reason+" "+own.Status.Message)
	case podReady(&own):
		state.set(v1alpha1.ConditionAccessResourcesReady, true, "PodReady", "")
	default:
		state.set(v1alpha1.ConditionAccessResourcesReady, false, v1alpha1.ReasonPodNotReady, "the Pod is not ready yet")
	}
	return nil
}

// refuse takes away what a request that is not valid may have, and says why.
func (r *requests) refuse(ctx context.Context, req v1alpha1.Request, condition string, why *refusal) error {
	key := client.ObjectKeyFromObject(req)
	r.counted.set(key, false)
	if err := r.sweep(ctx, key); err != nil {
		return err
	}
	state := newState(req, time.Time{})
	state.refused(condition, why)
	return r.write(ctx, req, state)
}

// have reads what a request got from the cache.
func (r *requests) have(ctx context.Context, key types.NamespacedName, into client.Object) (bool, error) {
	err := r.cached.Get(ctx, r.kind.resource(key), into)
	return err == nil, client.IgnoreNotFound(err)
}

func (r *requests) errBehind(key types.NamespacedName) error {
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource(r.kind.request).GroupResource(), key.Name, errors.New("the cache is behind"))
}
