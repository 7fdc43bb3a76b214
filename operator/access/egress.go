package access

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// watchPolicies returns what is watched for the policies: they themselves, and the addresses
// of the API server.
func (r *requests) watchPolicies() map[client.Object]func(context.Context, client.Object) []types.NamespacedName {
	watches := map[client.Object]func(context.Context, client.Object) []types.NamespacedName{}
	if !r.kind.makesPod || len(r.holder.Kinds) == 0 {
		return nil
	}
	for _, kind := range r.holder.Kinds {
		watches[egress.NewPolicy(kind)] = r.ownerOf
	}
	watches[&discoveryv1.EndpointSlice{}], watches[&corev1.Service{}] = r.reachingAPIServer, r.reachingAPIServer
	return watches
}

// reachingAPIServer finds the requests whose policies have the addresses of the API server.
func (r *requests) reachingAPIServer(ctx context.Context, _ client.Object) []types.NamespacedName {
	var list v1alpha1.PodAccessRequestList
	if err := r.cached.List(ctx, &list); err != nil {
		return nil
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if e := list.Items[i].Status.Egress; e != nil && e.Policy != "" && egress.NamesAPIServer(&e.Egress) {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys
}

// readEgress reads the policies of a request, its Pod, and what else decides about them.
func (r *requests) readEgress(ctx context.Context, f *facts) error {
	if !r.kind.makesPod {
		return nil
	}
	f.egressOptions = &r.options.Egress
	if len(r.holder.Kinds) == 0 {
		return nil
	}
	key := r.kind.resource(f.key)
	for _, kind := range r.holder.Kinds {
		policy, err := get(ctx, r.cached, key, egress.NewPolicy(kind))
		if err != nil && !meta.IsNoMatchError(err) {
			return err
		}
		if policy != nil && err == nil {
			f.policies = append(f.policies, policy)
		}
	}
	var err error
	if f.there, err = get(ctx, r.cached, key, &corev1.Pod{}); err != nil || f.request == nil {
		return err
	}
	f.apiServer, err = r.holder.APIServer(ctx, r.cached)
	return err
}

// readHold decides what is to hold the Pod of a request that has none yet. What was decided
// before stays.
func (r *requests) readHold(ctx context.Context, f *facts) {
	t, ok := f.template.(*v1alpha1.PodAccessTemplate)
	before := f.request.GetRequestStatus().Egress
	switch {
	case !ok:
		return
	case f.settled() != (choice{}): // it has, or had, its Pod
		f.hold = before
		return
	case before != nil && (t.Spec.Egress == nil || !apiequality.Semantic.DeepEqual(before.Egress, *t.Spec.Egress)):
		f.noHold = refuse(v1alpha1.ReasonEgressChanged, "the egress of template %q was changed after it was decided for the request; make another request", t.Name).about(v1alpha1.ConditionEgressHeld)
		return
	case t.Spec.Egress == nil:
		return
	}
	if err := egress.Check(t.Spec.Egress, &r.options.Egress); err != nil {
		f.noHold = refuse(v1alpha1.ReasonEgressInvalid, "template %q: spec.egress.%v", t.Name, err).about(v1alpha1.ConditionEgressHeld).forNow()
		return
	}
	hold, err := r.holder.Decide(ctx, t.Spec.Egress, f.apiServer)
	switch {
	case err != nil:
		f.noHold = unheld(err)
	case before != nil && (before.Policy == "") != (hold.Policy == ""):
		f.noHold = refuse(v1alpha1.ReasonEgressChanged, "the operator has changed --access-network-policy since it was decided for the request; make another request").about(v1alpha1.ConditionEgressHeld)
	case before != nil:
		f.hold = before
	default:
		f.hold = hold
	}
}

// unheld refuses for now what cannot be held.
func unheld(err error) *refusal {
	reason := v1alpha1.ReasonEgressNotEnforced
	if u, ok := errors.AsType[*egress.Unheld](err); ok {
		reason = u.Reason
	}
	return refuse(reason, "%v", err).about(v1alpha1.ConditionEgressHeld).forNow()
}

func (f *facts) unheld() *refusal { return f.noHold }

// kept returns what was decided to hold the Pod of a request, nil if nothing.
func (f *facts) kept() *v1alpha1.EgressDecision {
	if f.request == nil {
		return nil
	}
	if e := f.request.GetRequestStatus().Egress; e != nil && e.Policy != "" {
		return e
	}
	return nil
}

// held says in the status whether the Pod is held.
func (s *state) held(f *facts, e *v1alpha1.EgressDecision) {
	const condition = v1alpha1.ConditionEgressHeld
	switch {
	case e == nil:
	case e.Policy == "":
		s.set(condition, false, v1alpha1.ReasonEgressNotEnforced, "nothing holds the access Pod to the egress of its template: "+e.Reason)
	case f.egressOptions == nil || !f.egressOptions.On():
		s.set(condition, false, v1alpha1.ReasonEgressNotEnforced, "nobody keeps the policy of the access Pod in force any more: the operator has changed --access-network-policy")
	default:
		s.set(condition, true, v1alpha1.ReasonPolicyInForce, fmt.Sprintf("%s %s holds the access Pod: %s", e.Policy, f.kind.resource(f.key).Name, e.Reason))
	}
}

// policyOf returns what the policy of a request is made of. Its Pod owns it, too, once there is one: the policy
// must outlive a request that is deleted until its Pod is gone.
func (f *facts) policyOf(e *v1alpha1.EgressDecision, pod *corev1.Pod) *egress.Held {
	of := f.kind.meta(f.request)
	of.OwnerReferences = []metav1.OwnerReference{f.kind.ownedBy(f.request)}
	if pod != nil {
		of.OwnerReferences = append(of.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	}
	return &egress.Held{ObjectMeta: of, Label: f.request.GetUID(), Decision: e, Options: f.egressOptions}
}

// restores says what there is to restore, nil for nothing: the policy must be there as long as its Pod.
func (f *facts) restores() (*egress.Restoration, error) {
	e := f.kept()
	if e == nil || f.there == nil {
		return nil, nil
	}
	var current *unstructured.Unstructured
	if i := slices.IndexFunc(f.policies, func(p *unstructured.Unstructured) bool { return p.GetKind() == e.Policy }); i >= 0 {
		current = f.policies[i]
	}
	return f.policyOf(e, f.there).Restore(current, f.apiServer)
}

// leaves returns the policies of a request whose Pod is gone, or is not going to be made. Those of a request that is
// gone have its UID: what somebody else has given our label stays.
func (f *facts) leaves() (left []*unstructured.Unstructured) {
	comes := f.request != nil && f.settled() == (choice{}) && !ended(f.request)
	if f.there != nil || comes {
		return nil
	}
	for _, policy := range f.policies {
		orphaned := f.request == nil && policy.GetLabels()[LabelManagedBy] == managedBy && policy.GetAnnotations()[AnnotationRequestUID] != ""
		if orphaned || f.request != nil && f.ownsPolicy(policy) {
			left = append(left, policy)
		}
	}
	return left
}

// ownsPolicy reports whether a policy was made for the request.
func (f *facts) ownsPolicy(policy *unstructured.Unstructured) bool {
	return f.kind.owns(policy, f.request.GetUID()) && policy.GetAnnotations()[AnnotationRequestUID] == string(f.request.GetUID())
}
