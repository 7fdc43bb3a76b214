package access

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// grant gives a request what it lacks: the access Pod and the Role, then the
// RoleBinding, and completes what the status says. What the API server refuses is
// not an error, but becomes a refusal in the status.
func (r *requests) grant(ctx context.Context, f *facts.Facts, d *decision.Decision) error {
	err := r.give(ctx, f, d)
	if refused, ok := errors.AsType[*rules.Refusal](err); ok {
		d.Status.Refused(refused)
		d.Waits = refused.Waits
		return nil
	}
	return err
}

func (r *requests) give(ctx context.Context, f *facts.Facts, d *decision.Decision) error {
	role := f.Role
	if role == nil {
		made, pod, err := r.record(ctx, f, d.Grant)
		d.Status.Egress = f.Request.GetRequestStatus().Egress // from now on it stays
		if err != nil {
			return err
		}
		role = made
		d.Status.Granted(role.Annotations[grant.AnnotationMessage])
		d.Status.Observed(f.Kind, pod)
		d.Status.Held(f, f.Hold)
	}
	if r.Clock.Now().After(f.End) {
		d.Status = nil
		return nil
	}
	d.Status.Choose(grant.ChoiceOf(role))
	if err := r.settle(ctx, f, grant.ChoiceOf(role)); err != nil {
		return fmt.Errorf("writing what was chosen into the status: %w", err)
	}
	binding, err := grant.NewBinding(r.kind, f.Request, role)
	if err != nil {
		return err
	}
	if err := r.tellOnce(ctx, decision.GrantRecord(f, grant.ChoiceOf(role))); err != nil {
		return err
	}
	if err := r.createBinding(ctx, binding); err != nil {
		return fmt.Errorf("creating RoleBinding %s/%s: %w", binding.Namespace, binding.Name, err)
	}
	d.Live = true
	d.Status.SetGrantedAt(binding.CreationTimestamp)
	return nil
}

// settle writes what was chosen into the status before there is access to it.
// Anybody may delete the Role, but that must not lead to another Pod or role.
func (r *requests) settle(ctx context.Context, f *facts.Facts, to grant.Choice) error {
	if f.Settled() != (grant.Choice{}) {
		return nil
	}
	s := decision.NewStatus(f.Request, f.End)
	s.Choose(to)
	return r.PatchStatus(ctx, f.Request, &s.RequestStatus)
}

// record makes the access Pod, or finds the one that an earlier attempt made, and
// records the Pod in the Role. The access command is that for the Pod as the API
// server made it.
func (r *requests) record(ctx context.Context, f *facts.Facts, g *decision.Grant) (*rbacv1.Role, *corev1.Pod, error) {
	if f.Kind.GivesRole {
		role, err := r.recordChoice(ctx, f, g, g.Role, fmt.Sprintf("kubectl auth can-i --list -n %s", f.Key.Namespace))
		return role, nil, err
	}
	pod := g.Pod
	if f.Kind.MakesPod {
		var err error
		if err = r.holdFirst(ctx, f); err != nil {
			return nil, nil, err
		}
		if pod, err = r.createPod(ctx, f, pod); err != nil {
			return nil, nil, err
		}
		if err = r.heldPod(ctx, f, pod); err != nil {
			return nil, nil, err
		}
	}
	message, refused := rules.CommandFor(g.Template, &pod.ObjectMeta)
	if refused != nil {
		if f.Kind.MakesPod {
			if err := r.deletePod(ctx, f, grant.Choice{Name: pod.Name, UID: pod.UID}); err != nil {
				return nil, nil, err
			}
		}
		return nil, nil, refused
	}
	role, err := r.recordChoice(ctx, f, g, grant.Choice{Name: pod.Name, UID: pod.UID}, message)
	return role, pod, err
}

// recordChoice records in the Role what was chosen, and by which command it is used.
func (r *requests) recordChoice(ctx context.Context, f *facts.Facts, g *decision.Grant, to grant.Choice, message string) (*rbacv1.Role, error) {
	role, err := grant.NewRole(r.kind, f.Request, g.Template.GetAccessConfig(), to)
	if err != nil {
		return nil, err
	}
	role.Annotations[grant.AnnotationMessage], role.Annotations[grant.AnnotationTemplateUID] = message, string(g.Template.GetUID())
	if role, err = r.createRole(ctx, role); err != nil {
		return nil, fmt.Errorf("creating Role: %w", err)
	}
	return role, nil
}

// createPod creates an access Pod, or returns the one that an earlier attempt made: a
// request gets one Pod. Nobody else can have made one that the request owns; see
// package admission.
func (r *requests) createPod(ctx context.Context, f *facts.Facts, pod *corev1.Pod) (*corev1.Pod, error) {
	if f.Settled() != (grant.Choice{}) {
		return r.madePod(ctx, f)
	}
	err := r.Writer.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.madePod(ctx, f)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return nil, rules.Refuse(v1alpha1.ReasonPodRefused, "the API server refuses the access Pod: %v", err).ForNow()
	}
	return pod, err
}

// madePod returns the access Pod that an earlier attempt made.
func (r *requests) madePod(ctx context.Context, f *facts.Facts) (*corev1.Pod, error) {
	key, settled := f.Kind.Resource(f.Key), f.Settled()
	pod, err := kube.Get(ctx, r.Live, key, &corev1.Pod{})
	switch {
	case err != nil:
		return nil, err
	case settled != grant.Choice{} && pod == nil:
		return nil, rules.LostPod(key.Name, rules.PodGone)
	case settled != grant.Choice{} && pod.UID != settled.UID:
		return nil, rules.LostPod(key.Name, rules.PodReplaced)
	case pod == nil || !f.Kind.Owns(pod, f.Request.GetUID()):
		return nil, rules.Refuse(v1alpha1.ReasonNameTaken, "Pod %s exists and does not belong to this request", key).ForNow()
	}
	return pod, nil
}

// createRole creates a Role, or returns the one that an earlier run made.
func (a *shared) createRole(ctx context.Context, role *rbacv1.Role) (*rbacv1.Role, error) {
	err := a.Writer.Create(ctx, role)
	if !apierrors.IsAlreadyExists(err) {
		return role, err
	}
	var existing rbacv1.Role
	if err := a.Live.Get(ctx, client.ObjectKeyFromObject(role), &existing); err != nil {
		return nil, err
	}
	if existing.Annotations[grant.AnnotationRequestUID] != role.Annotations[grant.AnnotationRequestUID] {
		return nil, rules.Refuse(v1alpha1.ReasonNameTaken, "Role %s/%s exists and does not belong to this request", role.Namespace, role.Name).ForNow()
	}
	return &existing, nil
}

// createBinding creates a RoleBinding, or makes sure that one that exists says
// the same.
func (a *shared) createBinding(ctx context.Context, binding *rbacv1.RoleBinding) error {
	want := binding.DeepCopy()
	err := a.Writer.Create(ctx, binding)
	if err == nil && !grant.IsSameGrant(binding, want) {
		return errors.New("something changed it while it was made, so that it does not say what was granted")
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var existing rbacv1.RoleBinding
	if err := a.Live.Get(ctx, client.ObjectKeyFromObject(binding), &existing); err != nil {
		return err
	}
	ours := existing.Annotations[grant.AnnotationRequestUID] == want.Annotations[grant.AnnotationRequestUID]
	switch {
	case !ours:
		return rules.Refuse(v1alpha1.ReasonNameTaken, "RoleBinding %s/%s exists and does not belong to this request: nothing is granted while it does", binding.Namespace, binding.Name).ForNow()
	case grant.IsSameGrant(&existing, want) && existing.Labels[grant.LabelManagedBy] == grant.ManagedBy:
		*binding = existing
		return nil
	}
	// The cache does not see it without its label.
	if err := a.Writer.Delete(ctx, &existing, client.Preconditions{UID: &existing.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return errors.New("it was changed, and is made anew")
}
