package binding

import (
	"context"
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/permission"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// apply does what was decided. What must not be goes first, and while it cannot be removed
// nothing else is done.
func (r *bindings) apply(ctx context.Context, f *facts, d *decision) error {
	if d.remove != nil {
		if err := r.remove(ctx, f.key, d.remove); err != nil {
			return err
		}
		if d.ended {
			endLateness.WithLabelValues(r.kind.name).Observe(r.options.Clock.Since(f.end).Seconds())
			endedTotal.WithLabelValues(r.kind.name).Inc()
		}
	}
	if f.object == nil {
		r.own.forget(f.key)
		return nil
	}
	if d.judge {
		if err := r.judge(ctx, f, d); err != nil {
			return err
		}
	}
	made := client.Object(nil)
	if d.create != nil {
		var err error
		if made, err = r.create(ctx, f, d); err != nil {
			return err
		}
	}
	if d.reason != "" {
		if err := r.write(ctx, f, d, made); err != nil {
			return err
		}
	}
	if d.discard {
		uid := f.object.GetUID()
		err := client.IgnoreNotFound(r.writer.Delete(ctx, f.object.(client.Object), client.Preconditions{UID: &uid}))
		d.next = d.next.AddDate(0, 0, 1) // if a finalizer keeps it
		return err
	}
	return nil
}

// remove deletes that very binding, and no other of its name, at once: a finalizer would
// keep it in force.
func (r *bindings) remove(ctx context.Context, key types.NamespacedName, binding client.Object) error {
	uid := binding.GetUID()
	r.own.removing(key, uid)
	err := r.writer.Delete(ctx, binding, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err == nil && len(binding.GetFinalizers()) > 0 {
		var patch []byte
		if patch, err = json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "finalizers": nil}}); err == nil {
			err = r.writer.Patch(ctx, binding, client.RawPatch(types.MergePatchType, patch))
		}
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s %s: %w", r.kind.name, key, err)
	}
	return nil
}

// authorOf returns the author of an object. If it was made long before it begins, former is
// true and the author has only the groups that nobody leaves.
func authorOf(object v1alpha1.TransientBinding) (user authenticationv1.UserInfo, former bool) {
	spec := object.GetBindingSpec()
	user = spec.Author.UserInfo()
	if spec.ValidFrom == nil || spec.ValidFrom.Sub(object.GetCreationTimestamp().Time) <= permission.GroupsLast {
		return user, false
	}
	return permission.Former(user), true
}

// judge asks whether the author may bind the role at this moment. If not, there is no
// binding, and the author is asked about again.
func (r *bindings) judge(ctx context.Context, f *facts, d *decision) error {
	spec := f.object.GetBindingSpec()
	user, former := authorOf(f.object)
	may, reason, err := cluster.MayBind(ctx, r.writer, user, spec.RoleRef.Ref(), f.key.Namespace)
	if err != nil || may {
		return err
	}
	if former {
		reason += fmt.Sprintf("; whether they are still in groups of theirs is not known, since the object was made more than %s before it begins: grant it to them by name, or have somebody make another object", permission.GroupsLast)
	}
	d.reason, d.message, d.poll = v1alpha1.BindingNotAllowed, reason, true
	if d.create == nil {
		return r.remove(ctx, f.key, f.binding)
	}
	d.create = nil
	return nil
}

// create makes the binding.
func (r *bindings) create(ctx context.Context, f *facts, d *decision) (client.Object, error) {
	binding := d.create
	err := r.own.make(f.key, r.options.Clock.Now(), func() (types.UID, error) {
		err := r.writer.Create(ctx, binding)
		return binding.GetUID(), err
	})
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err): // the manager's own rights, a quota, or a webhook
		d.reason, d.message, d.poll = v1alpha1.BindingNotAllowed, fmt.Sprintf("the API server refuses the binding: %v", err), true
		return nil, nil //nolint:nilnil // it may be made later
	case err != nil:
		return nil, fmt.Errorf("creating %s %s: %w", r.kind.name, f.key, err)
	}
	if f.object.GetBindingStatus().BeganAt != nil {
		if f.isJudged() { // else the spec has changed, and nobody touched the binding
			repairedTotal.WithLabelValues(r.kind.name).Inc()
			r.event(f.object, corev1.EventTypeWarning, "BindingRepaired", "Repair", "somebody changed or deleted it")
		}
		return binding, nil
	}
	startedTotal.WithLabelValues(r.kind.name).Inc()
	if from, made := begin(f.object), f.object.GetCreationTimestamp(); from.After(made.Time) {
		startLateness.WithLabelValues(r.kind.name).Observe(r.options.Clock.Since(from).Seconds())
	}
	return binding, nil
}

// write writes the status, if it changed, and reports in an Event what is new. made is
// the binding, if there is a new one.
func (r *bindings) write(ctx context.Context, f *facts, d *decision, made client.Object) error {
	before := f.object.DeepCopyObject().(client.Object)
	status, now := f.object.GetBindingStatus(), metav1.NewTime(r.options.Clock.Now())
	was := status.DeepCopy()
	if made == nil && d.reason == v1alpha1.BindingActive {
		made = f.binding
	}
	if status.RoleUID == "" && d.reason != v1alpha1.BindingEnded {
		if status.RoleUID = string(f.seenRole()); status.RoleUID == "" {
			status.RoleUID = string(f.roleUID)
		}
	}
	if made != nil {
		status.BindingUID = string(made.GetUID())
		if status.BeganAt == nil {
			status.BeganAt = &now
		}
	}
	if d.ended && status.EndedAt == nil {
		status.EndedAt = &now
	}
	condition := metav1.Condition{
		Type: v1alpha1.ConditionEffective, Status: metav1.ConditionFalse, Reason: d.reason, Message: truncate.Text(d.message, maxMessage),
		ObservedGeneration: f.object.GetGeneration(), LastTransitionTime: now,
	}
	if d.reason == v1alpha1.BindingActive {
		condition.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	if apiequality.Semantic.DeepEqual(was, status) {
		return nil
	}
	object := f.object.(client.Object)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.writer.Status().Patch(ctx, object, patch); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.report(f.object, was, d)
	return nil
}

// report sends an Event about what is new.
func (r *bindings) report(object v1alpha1.TransientBinding, was *v1alpha1.TransientBindingStatus, d *decision) {
	before := meta.FindStatusCondition(was.Conditions, v1alpha1.ConditionEffective)
	if before != nil && before.Reason == d.reason {
		if d.reason == v1alpha1.BindingActive && before.ObservedGeneration != object.GetGeneration() {
			r.event(object, corev1.EventTypeNormal, "BindingChanged", "Bind", "%s; subjects: %d; author %s", d.message, len(object.GetBindingSpec().Subjects), object.GetBindingSpec().Author.Username)
		}
		return
	}
	switch d.reason {
	case v1alpha1.BindingNotYet:
	case v1alpha1.BindingActive:
		r.event(object, corev1.EventTypeNormal, "BindingStarted", "Bind", "%s; author %s; %s", d.message, object.GetBindingSpec().Author.Username, object.GetBindingSpec().Reason)
	case v1alpha1.BindingEnded:
		r.event(object, corev1.EventTypeNormal, "BindingEnded", "Unbind", "%s", d.message)
	default:
		r.event(object, corev1.EventTypeWarning, d.reason, "Bind", "%s", d.message)
	}
}

const (
	// maxMessage and maxNote are what the API server accepts.
	maxMessage = 32768
	maxNote    = 1024
)

func (r *bindings) event(object v1alpha1.TransientBinding, kind, reason, action, format string, args ...any) {
	r.events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: r.kind.object,
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}, nil, kind, reason, action, "%s", truncate.Text(fmt.Sprintf(format, args...), maxNote))
}
