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
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// holdFirst makes the policy of a Pod that is about to be made: from its first packet on it
// is held. What was decided goes into the status before, and stays.
func (r *requests) holdFirst(ctx context.Context, f *facts) error {
	if f.hold == nil {
		return nil
	}
	if f.request.GetRequestStatus().Egress == nil {
		s := newState(f.request, f.end)
		s.Egress = f.hold
		if err := r.patchStatus(ctx, f.request, s); err != nil {
			return fmt.Errorf("writing what is to hold the Pod into the status: %w", err)
		}
	}
	if f.hold.Policy == "" || f.settled() != (choice{}) { // then it is kept
		return nil
	}
	labels := map[string]string{LabelManagedBy: managedBy, LabelRequest: f.key.Name, v1alpha1.LabelEgress: string(f.request.GetUID())}
	err := r.holder.CheckOthers(ctx, r.kind.resource(f.key), labels, whose)
	if u, ok := errors.AsType[*egress.Unheld](err); ok {
		return unheld(u)
	}
	if err != nil {
		return err
	}
	return r.ownPolicy(ctx, f, nil)
}

// ownPolicy makes the policy of a request, or makes the one that an earlier attempt made as it is
// to be. The Pod, if there is one, owns it from now on.
func (r *requests) ownPolicy(ctx context.Context, f *facts, pod *corev1.Pod) error {
	want, err := f.policyOf(f.hold, pod).Compose(f.apiServer)
	if err != nil {
		return err
	}
	of := &egress.Restoration{Want: want}
	if pod == nil {
		if err := r.writer.Create(ctx, want.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return refusedPolicy(of.Name(), err)
		}
	}
	existing, err := get(ctx, r.live, client.ObjectKeyFromObject(want), egress.NewPolicy(want.GroupVersionKind()))
	switch {
	case err != nil:
		return err
	case existing == nil:
		return fmt.Errorf("%s was deleted while it was made", of.Name())
	case !f.ownsPolicy(existing):
		return refuse(v1alpha1.ReasonNameTaken, "%s exists and does not belong to this request: no Pod is made while it does", of.Name()).about(v1alpha1.ConditionEgressHeld).forNow()
	case egress.IsAsMade(existing, want):
		return nil
	}
	of.Current = existing
	_, err = r.holder.Write(ctx, of)
	return refusedPolicy(of.Name(), err)
}

// refusedPolicy refuses a request whose policy the API server refuses, as a quota or a
// webhook has it.
func refusedPolicy(name string, err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		return refuse(v1alpha1.ReasonPodRefused, "the API server refuses %s, without which the access Pod is not made: %v", name, err).about(v1alpha1.ConditionEgressHeld).forNow()
	}
	return err
}

// labelsOfHeld are the labels of a Pod that a policy holds, as [egress.Widens] wants them.
func labelsOfHeld() map[string]string {
	return map[string]string{LabelManagedBy: managedBy, LabelRequest: ""}
}

// whose are the Pods that policies of others must not select.
const whose = "access Pods"

// heldPod makes sure that the policy holds the Pod that the API server made: a webhook may have changed it.
// Otherwise the Pod goes. The policy is then the Pod's, too.
func (r *requests) heldPod(ctx context.Context, f *facts, pod *corev1.Pod) error {
	if f.hold == nil || f.hold.Policy == "" {
		return nil
	}
	own := podMeta(&v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{Egress: &f.hold.Egress}}).Labels
	if err := fitsPolicy(pod, own); err != nil || pod.Labels[v1alpha1.LabelEgress] != string(f.request.GetUID()) {
		if err == nil {
			err = fmt.Errorf("it has not the label %s with the UID of its request", v1alpha1.LabelEgress)
		}
		if err := r.deletePod(ctx, f, choice{name: pod.Name, uid: pod.UID}); err != nil {
			return err
		}
		return refuse(v1alpha1.ReasonEgressInvalid, "the policy would not hold the access Pod as it was made, and so it was deleted: %v; does a webhook change it?", err).about(v1alpha1.ConditionEgressHeld).forNow()
	}
	return r.ownPolicy(ctx, f, pod)
}

// fitsPolicy says why no policy can hold a Pod, or others could reach it: own are the labels that the extension gives it.
func fitsPolicy(pod *corev1.Pod, own map[string]string) error {
	if pod.Spec.HostNetwork {
		return errors.New("hostNetwork: no network policy holds a Pod on the host's network; leave hostNetwork or spec.egress out")
	}
	for key := range pod.Labels {
		if _, ours := own[key]; !ours && !egress.IsOfTopology(key) {
			return fmt.Errorf("the label %s: by labels policies of others could select the Pod and allow it more; leave podLabels or spec.egress out", key)
		}
	}
	return nil
}

// fitsEgress says why a template cannot have its egress.
func fitsEgress(options *egress.Options, t *v1alpha1.PodAccessTemplate, made *corev1.Pod) error {
	if t.Spec.Egress == nil {
		return nil
	}
	if options.Mode == egress.ModeNone {
		return errors.New("spec.egress: nobody has said whether network policies are enforced here, and so nothing would hold it: let the operator set --access-network-policy, or leave spec.egress out")
	}
	err := egress.Check(t.Spec.Egress, options)
	if err == nil && made != nil {
		err = fitsPolicy(made, podMeta(t).Labels)
	}
	if err != nil {
		return fmt.Errorf("spec.egress: %w", err)
	}
	return nil
}

// holdOn keeps the policy of a request in force as long as there is its Pod, and deletes it then.
func (r *requests) holdOn(ctx context.Context, f *facts) error {
	if !r.kind.makesPod || len(r.holder.Kinds) == 0 {
		return nil
	}
	restored, err := f.restores()
	switch {
	case err != nil:
		return err
	case restored != nil:
		if err := r.restore(ctx, f, restored); err != nil {
			return err
		}
	}
	for _, policy := range f.leaves() {
		if err := r.release(ctx, f, policy); err != nil {
			return err
		}
	}
	return r.tellRestored(ctx, f)
}

// restore writes a policy as it was, and says so.
func (r *requests) restore(ctx context.Context, f *facts, of *egress.Restoration) error {
	name := of.Name()
	written, err := r.holder.Write(ctx, of)
	if err != nil {
		return fmt.Errorf("restoring %s: %w", name, err)
	}
	if of.Was == egress.Behind {
		r.log.Info("policy follows the API server", zap.String("policy", name))
		r.event(f.request, corev1.EventTypeNormal, "EgressFollowed", "Hold", "%s follows the API server: %s, before %s", name,
			of.Want.GetAnnotations()[egress.AnnotationAPIServer], of.Current.GetAnnotations()[egress.AnnotationAPIServer])
		return nil
	}
	restoredTotal.WithLabelValues(of.Was).Inc()
	r.log.Warn("policy restored", zap.String("policy", name), zap.String("was", of.Was))
	record := f.kind.about(f.request, actionRestored, "%s was %s, and holds the access Pod again: what the Pod reached meanwhile is not known", name, of.Was)
	record.ID += "-" + shortHash(string(written.GetUID())+"/"+written.GetResourceVersion())
	record.User = authenticationv1.UserInfo{} // nobody knows
	r.event(f.request, corev1.EventTypeWarning, "EgressRestored", "Hold", "%s", record.Reason)
	r.untold.Store(f.key, &record)
	return nil
}

// release deletes a policy once the API server says that its Pod is gone.
func (r *requests) release(ctx context.Context, f *facts, policy *unstructured.Unstructured) error {
	pod, err := r.livePod(ctx, r.kind.resource(f.key))
	if err != nil || pod != nil {
		return err
	}
	uid := policy.GetUID()
	if err := client.IgnoreNotFound(r.writer.Delete(ctx, policy, client.Preconditions{UID: &uid})); err != nil {
		return fmt.Errorf("deleting %s %s: %w", policy.GetKind(), r.kind.resource(f.key), err)
	}
	return nil
}

// tellRestored records that a policy was restored, which comes first: it must not wait for a recorder.
func (r *requests) tellRestored(ctx context.Context, f *facts) error {
	record, found := r.untold.Load(f.key)
	if !found {
		return nil
	}
	if err := r.tellOnce(ctx, *record.(*extension.Record)); err != nil {
		return err
	}
	r.untold.CompareAndDelete(f.key, record)
	return nil
}
