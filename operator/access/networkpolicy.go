package access

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// holdFirst makes the policy of a Pod that is about to be made: from its first packet on it
// is held. The decision goes into the status before, and stays.
func (r *requests) holdFirst(ctx context.Context, f *facts.Facts) error {
	if f.Hold == nil {
		return nil
	}
	if f.Request.GetRequestStatus().Egress == nil {
		s := decision.NewStatus(f.Request, f.End)
		s.Egress = f.Hold
		if err := r.PatchStatus(ctx, f.Request, &s.RequestStatus); err != nil {
			return fmt.Errorf("writing what is to hold the Pod into the status: %w", err)
		}
	}
	if f.Hold.Policy == "" || f.Settled() != (grant.Choice{}) { // then it is kept
		return nil
	}
	labels := map[string]string{grant.LabelManagedBy: grant.ManagedBy, grant.LabelRequest: f.Key.Name, v1alpha1.LabelEgress: string(f.Request.GetUID())}
	err := r.Holder.CheckOthers(ctx, r.kind.Resource(f.Key), labels, rules.AccessPods)
	if u, ok := errors.AsType[*egress.Unheld](err); ok {
		return facts.Unheld(u)
	}
	if err != nil {
		return err
	}
	return r.ownPolicy(ctx, f, nil)
}

// ownPolicy makes the policy of a request, or makes the one that an earlier attempt made as it is
// to be. The Pod, if there is one, owns it from now on.
func (r *requests) ownPolicy(ctx context.Context, f *facts.Facts, pod *corev1.Pod) error {
	want, err := f.PolicyOf(f.Hold, pod).Compose(f.APIServer)
	if err != nil {
		return err
	}
	of := &egress.Restoration{Want: want}
	if pod == nil {
		if err := r.Writer.Create(ctx, want.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return refusedPolicy(of.Name(), err)
		}
	}
	existing, err := kube.Get(ctx, r.Live, client.ObjectKeyFromObject(want), egress.NewPolicy(want.GroupVersionKind()))
	switch {
	case err != nil:
		return err
	case existing == nil:
		return fmt.Errorf("%s was deleted while it was made", of.Name())
	case !f.OwnsPolicy(existing):
		return rules.Refuse(v1alpha1.ReasonNameTaken, "%s exists and does not belong to this request: no Pod is made while it does", of.Name()).About(v1alpha1.ConditionEgressHeld).ForNow()
	case egress.IsAsMade(existing, want):
		return nil
	}
	of.Current = existing
	_, err = r.Holder.Write(ctx, of)
	return refusedPolicy(of.Name(), err)
}

// refusedPolicy refuses a request whose policy the API server refuses, as a quota or a
// webhook has it.
func refusedPolicy(name string, err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		return rules.Refuse(v1alpha1.ReasonPodRefused, "the API server refuses %s, without which the access Pod is not made: %v", name, err).About(v1alpha1.ConditionEgressHeld).ForNow()
	}
	return err
}

// heldPod makes sure that the policy holds the Pod that the API server made: a webhook may have changed it.
// Otherwise the Pod goes. The policy is then the Pod's, too.
func (r *requests) heldPod(ctx context.Context, f *facts.Facts, pod *corev1.Pod) error {
	if f.Hold == nil || f.Hold.Policy == "" {
		return nil
	}
	own := rules.PodMeta(&v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{Egress: &f.Hold.Egress}}).Labels
	if err := rules.FitsPolicy(pod, own); err != nil || pod.Labels[v1alpha1.LabelEgress] != string(f.Request.GetUID()) {
		if err == nil {
			err = fmt.Errorf("it has not the label %s with the UID of its request", v1alpha1.LabelEgress)
		}
		if err := r.deletePod(ctx, f, grant.Choice{Name: pod.Name, UID: pod.UID}); err != nil {
			return err
		}
		return rules.Refuse(v1alpha1.ReasonEgressInvalid, "the policy would not hold the access Pod as it was made, and so it was deleted: %v; does a webhook change it?", err).About(v1alpha1.ConditionEgressHeld).ForNow()
	}
	return r.ownPolicy(ctx, f, pod)
}

// holdOn keeps the policy of a request in force as long as there is its Pod, and deletes it then.
func (r *requests) holdOn(ctx context.Context, f *facts.Facts) error {
	if !r.kind.MakesPod || len(r.Holder.Kinds) == 0 {
		return nil
	}
	restored, err := f.Restores()
	switch {
	case err != nil:
		return err
	case restored != nil:
		if err := r.restore(ctx, f, restored); err != nil {
			return err
		}
	}
	for _, policy := range f.Leaves() {
		if err := r.release(ctx, f, policy); err != nil {
			return err
		}
	}
	return r.tellRestored(ctx, f)
}

// restore writes a policy as it was, and says so.
func (r *requests) restore(ctx context.Context, f *facts.Facts, of *egress.Restoration) error {
	name := of.Name()
	written, err := r.Holder.Write(ctx, of)
	if err != nil {
		return fmt.Errorf("restoring %s: %w", name, err)
	}
	if of.Was == egress.Behind {
		r.Log.Info("policy follows the API server", zap.String("policy", name))
		r.event(f.Request, corev1.EventTypeNormal, "EgressFollowed", "Hold", "%s follows the API server: %s, before %s", name,
			of.Want.GetAnnotations()[egress.AnnotationAPIServer], of.Current.GetAnnotations()[egress.AnnotationAPIServer])
		return nil
	}
	restoredTotal.WithLabelValues(of.Was).Inc()
	r.Log.Warn("policy restored", zap.String("policy", name), zap.String("was", of.Was))
	record := f.Kind.About(f.Request, grant.ActionRestored, "%s was %s, and holds the access Pod again: what the Pod reached meanwhile is not known", name, of.Was)
	record.ID += "-" + grant.ShortHash(string(written.GetUID())+"/"+written.GetResourceVersion())
	record.User = authenticationv1.UserInfo{} // nobody knows
	r.event(f.Request, corev1.EventTypeWarning, "EgressRestored", "Hold", "%s", record.Reason)
	r.untold.Store(f.Key, &record)
	return nil
}

// release deletes a policy once the API server says that its Pod is gone.
func (r *requests) release(ctx context.Context, f *facts.Facts, policy *unstructured.Unstructured) error {
	pod, err := r.LivePod(ctx, r.kind.Resource(f.Key))
	if err != nil || pod != nil {
		return err
	}
	uid := policy.GetUID()
	if err := client.IgnoreNotFound(r.Writer.Delete(ctx, policy, client.Preconditions{UID: &uid})); err != nil {
		return fmt.Errorf("deleting %s %s: %w", policy.GetKind(), r.kind.Resource(f.Key), err)
	}
	return nil
}

// tellRestored records that a policy was restored, which comes first: it must not wait for a recorder.
func (r *requests) tellRestored(ctx context.Context, f *facts.Facts) error {
	record, found := r.untold.Load(f.Key)
	if !found {
		return nil
	}
	if err := r.tellOnce(ctx, *record.(*extension.Record)); err != nil {
		return err
	}
	r.untold.CompareAndDelete(f.Key, record)
	return nil
}
