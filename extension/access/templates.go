package access

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// templates reconciles the templates of one kind: it keeps their status.
type templates struct {
	*Access
	kind    kind
	targets *targets
}

var _ extension.Reconciler = (*templates)(nil)

func newTemplates(a *Access, k kind) *templates { return &templates{Access: a, kind: k} }

// Register makes the controller. It watches templates and, each by its name,
// their targets.
func (r *templates) Register(mgr extension.Manager) error {
	if err := r.setup(mgr); err != nil {
		return err
	}
	c, err := controller.New("access-"+r.kind.name+"-templates", mgr.GetKubeManager(), controller.Options{Reconciler: r})
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if r.targets, err = newTargets(r.cluster); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	for _, s := range []source.Source{
		source.Kind(r.cluster.GetCache(), client.Object(r.kind.newTemplate()), &handler.EnqueueRequestForObject{}),
		source.Channel(r.targets.changed, &handler.EnqueueRequestForObject{}),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("access: %w", err)
		}
	}
	return mgr.GetKubeManager().Add(r.targets)
}

// Reconcile writes the status of a template.
func (r *templates) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	t := r.kind.newTemplate()
	if err := r.cached.Get(ctx, key.NamespacedName, t); err != nil {
		r.targets.forget(key.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	status := t.GetTemplateStatus().DeepCopy()
	status.ObservedGeneration = t.GetGeneration()
	set := func(condition string, err error, reason string) {
		c := metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Valid", ObservedGeneration: t.GetGeneration()}
		if err != nil {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, err.Error()
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	_, err := maxDuration(t.GetAccessConfig())
	set(v1alpha1.ConditionTemplateDurationsValid, err, v1alpha1.ReasonTemplateInvalid)
	if ref := t.GetTargetRef(); ref == nil {
		r.targets.forget(key.NamespacedName)
		set(v1alpha1.ConditionTargetRefExists, nil, "")
	} else {
		// Watched first: what changes after the look is not missed.
		if err := r.targets.watch(key.NamespacedName, *ref); err != nil {
			return reconcile.Result{}, err
		}
		_, err := findWorkload(ctx, r.live, key.Namespace, *ref)
		var unsupported *meta.NoKindMatchError
		if err != nil && !missing(err) && !errors.As(err, &unsupported) {
			return reconcile.Result{}, err
		}
		set(v1alpha1.ConditionTargetRefExists, err, v1alpha1.ReasonTargetMissing)
	}
	status.Ready = meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTargetRefExists) &&
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTemplateDurationsValid)
	before := t.GetTemplateStatus()
	if apiequality.Semantic.DeepEqual(before, status) {
		return reconcile.Result{}, nil
	}
	was := t.DeepCopyObject().(client.Object)
	ready := before.Ready
	*t.GetTemplateStatus() = *status
	if err := r.writer.Status().Patch(ctx, t, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if ready != status.Ready {
		kind, reason := corev1.EventTypeNormal, "TemplateReady"
		if !status.Ready {
			kind, reason = corev1.EventTypeWarning, "TemplateNotReady"
		}
		r.events.Eventf(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: r.kind.template, Namespace: key.Namespace, Name: key.Name, UID: t.GetUID(),
		}, nil, kind, reason, "Check", "ready: %t", status.Ready)
	}
	return reconcile.Result{}, nil
}
