package facts

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// readEgress reads the policies of a request, its Pod, and what else decides about them.
func (r *Reader) readEgress(ctx context.Context, f *Facts) error {
	if !r.kind.MakesPod {
		return nil
	}
	f.EgressOptions = &r.Egress
	if len(r.Holder.Kinds) == 0 {
		return nil
	}
	key := r.kind.Resource(f.Key)
	for _, kind := range r.Holder.Kinds {
		policy, err := kube.Get(ctx, r.Cached, key, egress.NewPolicy(kind))
		if err != nil && !meta.IsNoMatchError(err) {
			return err
		}
		if policy != nil && err == nil {
			f.Policies = append(f.Policies, policy)
		}
	}
	var err error
	if f.There, err = kube.Get(ctx, r.Cached, key, &corev1.Pod{}); err != nil || f.Request == nil {
		return err
	}
	f.APIServer, err = r.Holder.APIServer(ctx, r.Cached)
	return err
}

// readHold decides what is to hold the Pod of a request that has none yet. An
// earlier decision stays.
func (r *Reader) readHold(ctx context.Context, f *Facts) {
	t, ok := f.Template.(*v1alpha1.PodAccessTemplate)
	before := f.Request.GetRequestStatus().Egress
	switch {
	case !ok:
		return
	case f.Settled() != (grant.Choice{}): // it has, or had, its Pod
		f.Hold = before
		return
	case before != nil && (t.Spec.Egress == nil || !apiequality.Semantic.DeepEqual(before.Egress, *t.Spec.Egress)):
		f.NoHold = rules.Refuse(v1alpha1.ReasonEgressChanged, "the egress of template %q was changed after it was decided for the request; make another request", t.Name).About(v1alpha1.ConditionEgressHeld)
		return
	case t.Spec.Egress == nil:
		return
	}
	if err := egress.Check(t.Spec.Egress, &r.Egress); err != nil {
		f.NoHold = rules.Refuse(v1alpha1.ReasonEgressInvalid, "template %q: spec.egress.%v", t.Name, err).About(v1alpha1.ConditionEgressHeld).ForNow()
		return
	}
	hold, err := r.Holder.Decide(ctx, t.Spec.Egress, f.APIServer)
	switch {
	case err != nil:
		f.NoHold = Unheld(err)
	case before != nil && (before.Policy == "") != (hold.Policy == ""):
		f.NoHold = rules.Refuse(v1alpha1.ReasonEgressChanged, "the operator has changed --access-network-policy since it was decided for the request; make another request").About(v1alpha1.ConditionEgressHeld)
	case before != nil:
		f.Hold = before
	default:
		f.Hold = hold
	}
}

// Unheld refuses for now what cannot be held.
func Unheld(err error) *rules.Refusal {
	reason := v1alpha1.ReasonEgressNotEnforced
	if u, ok := errors.AsType[*egress.Unheld](err); ok {
		reason = u.Reason
	}
	return rules.Refuse(reason, "%v", err).About(v1alpha1.ConditionEgressHeld).ForNow()
}

// kept returns what was decided to hold the Pod of a request, nil if nothing.
func (f *Facts) kept() *v1alpha1.EgressDecision {
	if f.Request == nil {
		return nil
	}
	if e := f.Request.GetRequestStatus().Egress; e != nil && e.Policy != "" {
		return e
	}
	return nil
}

// Restores says what there is to restore, nil for nothing: the policy must be there as long as its Pod.
func (f *Facts) Restores() (*egress.Restoration, error) {
	e := f.kept()
	if e == nil || f.There == nil {
		return nil, nil
	}
	var current *unstructured.Unstructured
	if i := slices.IndexFunc(f.Policies, func(p *unstructured.Unstructured) bool { return p.GetKind() == e.Policy }); i >= 0 {
		current = f.Policies[i]
	}
	return f.PolicyOf(e, f.There).Restore(current, f.APIServer)
}

// Leaves returns the policies of a request whose Pod is gone, or is not going to be made. Those of a request that is
// gone have its UID: what somebody else has given our label stays.
func (f *Facts) Leaves() (left []*unstructured.Unstructured) {
	comes := f.Request != nil && f.Settled() == (grant.Choice{}) && !grant.Ended(f.Request)
	if f.There != nil || comes {
		return nil
	}
	for _, policy := range f.Policies {
		orphaned := f.Request == nil && policy.GetLabels()[grant.LabelManagedBy] == grant.ManagedBy && policy.GetAnnotations()[grant.AnnotationRequestUID] != ""
		if orphaned || f.Request != nil && f.OwnsPolicy(policy) {
			left = append(left, policy)
		}
	}
	return left
}

// OwnsPolicy reports whether a policy was made for the request.
func (f *Facts) OwnsPolicy(policy *unstructured.Unstructured) bool {
	return f.Kind.Owns(policy, f.Request.GetUID()) && policy.GetAnnotations()[grant.AnnotationRequestUID] == string(f.Request.GetUID())
}

// PolicyOf returns what the policy of a request is made of. Its Pod owns it, too, once there is one: the policy
// must outlive a request that is deleted until its Pod is gone.
func (f *Facts) PolicyOf(e *v1alpha1.EgressDecision, pod *corev1.Pod) *egress.Held {
	of := f.Kind.Meta(f.Request)
	of.OwnerReferences = []metav1.OwnerReference{f.Kind.OwnedBy(f.Request)}
	if pod != nil {
		of.OwnerReferences = append(of.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	}
	return &egress.Held{ObjectMeta: of, Label: f.Request.GetUID(), Decision: e, Options: f.EgressOptions}
}
