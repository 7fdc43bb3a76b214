package access

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// templates reconciles the templates of one kind: it keeps their status.
type templates struct {
	*shared
	kind    grant.Kind
	targets *workload.Watches
}

var _ extension.Reconciler = (*templates)(nil)

func newTemplates(a *shared, k grant.Kind) *templates { return &templates{shared: a, kind: k} }

// Register makes the controller. It watches templates and, each by its name, their
// targets.
func (r *templates) Register(mgr extension.Manager) error {
	if err := r.Setup(mgr); err != nil {
		return err
	}
	c, err := controller.New(mgr, "access-"+r.kind.Name+"-templates", r, 1, r.Cluster.GetCache(),
		map[client.Object]handler.EventHandler{r.kind.NewTemplate(): &handler.EnqueueRequestForObject{}})
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if r.targets, err = workload.NewWatches(r.Cluster); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if err := c.Watch(source.Channel(r.targets.Changed(), &handler.EnqueueRequestForObject{})); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	return mgr.GetKubeManager().Add(r.targets)
}

// conflictDelay is the time that the cache has to catch up.
const conflictDelay = 100 * time.Millisecond

// Reconcile writes the status of a template.
func (r *templates) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := within(ctx, kube.AttemptTimeout, func(ctx context.Context) (reconcile.Result, error) { return r.reconcile(ctx, key) })
	if apierrors.IsConflict(err) { // the cache is behind: what it lacks is on its way
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, err
}

func (r *templates) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	t := r.kind.NewTemplate()
	if err := r.Cached.Get(ctx, key.NamespacedName, t); err != nil {
		r.targets.Forget(key.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if t, ok := t.(*v1alpha1.RoleAccessTemplate); ok {
		return reconcile.Result{}, r.reconcileRole(ctx, t)
	}
	target, missing, err := r.findTarget(ctx, t)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.write(ctx, t, templateStatus(t, target, missing, &r.Egress)))
}

// reconcileRole looks for the role of a template, and watches it. The status has its UID: when
// a role is made anew, that wakes the requests that had the earlier one.
func (r *templates) reconcileRole(ctx context.Context, t *v1alpha1.RoleAccessTemplate) error {
	key := client.ObjectKeyFromObject(t)
	status := templateStatus(t, nil, nil, &r.Egress)
	set := func(condition string, holds bool, reason, message string) {
		c := metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Valid", Message: message, ObservedGeneration: t.Generation}
		if !holds {
			c.Status, c.Reason, status.Ready = metav1.ConditionFalse, reason, false
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if refused := r.Roles.Refuses(t.Namespace, t.Spec.RoleRef); refused != nil {
		r.targets.Forget(key) // there is no right to watch it
		set(v1alpha1.ConditionRoleAllowed, false, refused.Reason, refused.Message)
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionTargetRefExists) // nobody knows
		return client.IgnoreNotFound(r.write(ctx, t, status))
	}
	set(v1alpha1.ConditionRoleAllowed, true, "", "")
	// Watched first, so that no change after the look is missed.
	if err := r.targets.Watch(ctx, key, *t.GetTargetRef()); err != nil {
		return err
	}
	role, err := r.RoleOf(ctx, t)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		set(v1alpha1.ConditionTargetRefExists, false, v1alpha1.ReasonTargetMissing, fmt.Sprintf("%s does not exist", role))
	} else {
		set(v1alpha1.ConditionTargetRefExists, true, "", fmt.Sprintf("%s has the UID %s", role, role.UID))
	}
	return client.IgnoreNotFound(r.write(ctx, t, status))
}

// findTarget looks for the target of a template, and watches it. missing says why
// it cannot be found; a template with a Pod spec of its own misses none.
func (r *templates) findTarget(ctx context.Context, t v1alpha1.Template) (target *workload.Workload, missing, err error) {
	key, ref := client.ObjectKeyFromObject(t), t.GetTargetRef()
	if ref == nil {
		r.targets.Forget(key)
		return nil, nil, nil
	}
	// Watched first, so that no change after the look is missed.
	if err := r.targets.Watch(ctx, key, *ref); err != nil {
		return nil, nil, err
	}
	target, err = workload.Find(ctx, r.Live, key.Namespace, *ref)
	if workload.Missing(err) {
		return nil, err, nil
	}
	return target, nil, err
}

// templateStatus is what a template says whose target is missing, or is not.
func templateStatus(t v1alpha1.Template, target *workload.Workload, missing error, held *egress.Options) *v1alpha1.TemplateStatus {
	status := t.GetTemplateStatus().DeepCopy()
	status.ObservedGeneration = t.GetGeneration()
	set := func(condition string, err error, reason string) {
		c := metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Valid", ObservedGeneration: t.GetGeneration()}
		if err != nil {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, err.Error()
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	limit, invalid := rules.MaxDuration(t.GetAccessConfig())
	pat, makesPod := t.(*v1alpha1.PodAccessTemplate)
	if makesPod && pat.Unreadable() != nil {
		invalid = pat.Unreadable()
	}
	set(v1alpha1.ConditionTemplateDurationsValid, invalid, v1alpha1.ReasonTemplateInvalid)
	if _, isRole := t.(*v1alpha1.RoleAccessTemplate); !isRole { // else reconcileRole says so
		set(v1alpha1.ConditionTargetRefExists, missing, v1alpha1.ReasonTargetMissing)
	}
	status.Ready = invalid == nil && missing == nil
	switch {
	case !makesPod:
	case !status.Ready:
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionAccessPodValid) // nobody knows
	default:
		made, unfit := pod.New(rules.PodMeta(pat), pat, target, limit)
		if unfit == nil {
			unfit = rules.FitsEgress(held, pat, made)
		}
		set(v1alpha1.ConditionAccessPodValid, unfit, v1alpha1.ReasonTemplateInvalid)
		status.Ready = unfit == nil
	}
	return status
}

// write writes the status of a template if it changed, and reports in an Event
// whether the template is ready.
func (r *templates) write(ctx context.Context, t v1alpha1.Template, status *v1alpha1.TemplateStatus) error {
	if apiequality.Semantic.DeepEqual(t.GetTemplateStatus(), status) {
		return nil
	}
	before := t.DeepCopyObject().(v1alpha1.Template)
	*t.GetTemplateStatus() = *status
	if err := r.Writer.Status().Patch(ctx, t, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	if before.GetTemplateStatus().Ready == status.Ready {
		return nil
	}
	kind, reason, note := corev1.EventTypeNormal, "TemplateReady", "requests can be made"
	if !status.Ready {
		kind, reason = corev1.EventTypeWarning, "TemplateNotReady"
		for _, c := range status.Conditions {
			if c.Status != metav1.ConditionTrue {
				note = c.Message
			}
		}
	}
	r.Events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: r.kind.TemplateKind, Namespace: t.GetNamespace(), Name: t.GetName(), UID: t.GetUID(),
	}, nil, kind, reason, "Check", "%s", noteOf(note))
	return nil
}
