package access

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// egressCache says what of policies, and of the API server's addresses, the cache holds. It needs a kind to be served.
func (a *shared) egressCache(ours cache.ByObject) map[client.Object]cache.ByObject {
	held := map[client.Object]cache.ByObject{}
	for _, kind := range a.policies {
		held[egress.NewPolicy(kind)] = ours
	}
	if len(a.policies) > 0 {
		maps.Copy(held, egress.APIServerCache())
	}
	return held
}

// findPolicies finds out which kinds of policies there are. New ones are of the first.
func (a *shared) findPolicies(mgr extension.Manager) error {
	kinds, err := egress.Kinds(&a.options.Egress, mgr.GetKubeConnection)
	if err != nil {
		return err
	}
	a.policies = kinds
	if a.options.Egress.Cilium && len(kinds) == 1 {
		a.log.Warn("the API server serves no CiliumNetworkPolicies: NetworkPolicies are made until a restart finds them")
	}
	return nil
}

// watchPolicies returns what is watched for the policies: they themselves, and the addresses
// of the API server.
func (r *requests) watchPolicies() map[client.Object]func(context.Context, client.Object) []types.NamespacedName {
	watches := map[client.Object]func(context.Context, client.Object) []types.NamespacedName{}
	if !r.kind.makesPod || len(r.policies) == 0 {
		return nil
	}
	for _, kind := range r.policies {
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
	if len(r.policies) == 0 {
		return nil
	}
	key := r.kind.resource(f.key)
	for _, kind := range r.policies {
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
	f.apiServer, err = egress.ReadAPIServer(ctx, r.cached)
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
	enforced, reason, err := r.prober.Enforced(ctx)
	if err != nil {
		f.noHold = refuse(v1alpha1.ReasonEgressNotEnforced, "cannot determine whether network policies are enforced: %v", err).about(v1alpha1.ConditionEgressHeld).forNow()
		return
	}
	f.decideHold(t.Spec.Egress, enforced, reason)
	if len(r.policies) > 0 && f.hold != nil {
		f.hold.Policy = r.policies[0].Kind
	}
	if before != nil && f.hold != nil {
		if (before.Policy == "") != (f.hold.Policy == "") {
			f.hold, f.noHold = nil, refuse(v1alpha1.ReasonEgressChanged, "the operator has changed --access-network-policy since it was decided for the request; make another request").about(v1alpha1.ConditionEgressHeld)
			return
		}
		f.hold = before
	}
}

// decideHold says whether a policy holds the Pod. Where nothing enforces policies, nothing is granted,
// unless the operator has said so.
func (f *facts) decideHold(wanted *v1alpha1.Egress, enforced bool, reason string) {
	refused := func(why, format string, args ...any) {
		f.noHold = refuse(why, format, args...).about(v1alpha1.ConditionEgressHeld).forNow()
	}
	switch {
	case !enforced && f.egressOptions.Mode != egress.ModeOff:
		refused(v1alpha1.ReasonEgressNotEnforced, "the template has spec.egress, which nothing would hold: %s. Let the operator set --access-network-policy to on where network policies are enforced, "+
			"or to off to have the Pod without", reason)
	case enforced && egress.NamesAPIServer(wanted) && len(f.apiServer) == 0:
		refused(v1alpha1.ReasonEgressNotEnforced, "the addresses of the API server are not known: the Service %s/%s has no ready EndpointSlice", egress.APIServerNamespace, egress.APIServerService)
	default:
		f.hold = &v1alpha1.EgressDecision{Reason: truncate.Text(reason, maxReason), Egress: *wanted.DeepCopy()}
	}
}

// maxReason is the length of a reason in the status.
const maxReason = 512

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

// compose returns the policy of a request. Its Pod owns it, too, once there is one: the policy
// must outlive a request that is deleted until its Pod is gone.
func (f *facts) compose(e *v1alpha1.EgressDecision, apiServer []netip.AddrPort, pod *corev1.Pod) (*unstructured.Unstructured, error) {
	kind := egress.NetworkPolicy
	if e.Policy == egress.CiliumNetworkPolicy.Kind {
		kind = egress.CiliumNetworkPolicy
	}
	made := egress.Policy{Kind: kind, Label: string(f.request.GetUID()), Egress: &e.Egress, Options: f.egressOptions, APIServer: apiServer}
	policy, err := made.Compose()
	if err != nil {
		return nil, err
	}
	of := f.kind.meta(f.request)
	policy.SetNamespace(of.Namespace)
	policy.SetName(of.Name)
	policy.SetLabels(of.Labels)
	if egress.NamesAPIServer(&e.Egress) {
		of.Annotations[egress.AnnotationAPIServer] = egress.FormatEndpoints(apiServer)
	}
	policy.SetAnnotations(of.Annotations)
	owners := []metav1.OwnerReference{f.kind.ownedBy(f.request)}
	if pod != nil {
		owners = append(owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	}
	policy.SetOwnerReferences(owners)
	return policy, nil
}

// What has become of a policy.
const (
	policyDeleted = "deleted"
	policyChanged = "changed"
	policyBehind  = "behind" // the API server has other addresses now
)

// restoration is how a policy is to be, and what had become of it.
type restoration struct {
	want, current *unstructured.Unstructured
	what          string
}

// restores says what there is to restore, nil for nothing: the policy must be there as long as its Pod.
func (f *facts) restores() (*restoration, error) {
	e := f.kept()
	if e == nil || f.there == nil {
		return nil, nil
	}
	i := slices.IndexFunc(f.policies, func(p *unstructured.Unstructured) bool { return p.GetKind() == e.Policy })
	if i < 0 {
		want, err := f.compose(e, f.apiServer, f.there)
		return &restoration{want, nil, policyDeleted}, err
	}
	current, apiServer := f.policies[i], f.apiServer
	before, unreadable := egress.ParseEndpoints(current.GetAnnotations()[egress.AnnotationAPIServer])
	if len(apiServer) == 0 && unreadable == nil { // a moment without any
		apiServer = before
	}
	want, err := f.compose(e, apiServer, f.there)
	if err != nil || isSamePolicy(current, want) {
		return nil, err
	}
	if unreadable == nil {
		if earlier, err := f.compose(e, before, f.there); err == nil && isSamePolicy(current, earlier) {
			return &restoration{want, current, policyBehind}, nil
		}
	}
	return &restoration{want, current, policyChanged}, nil
}

// isSamePolicy reports whether a policy is as it was made: others may add labels and annotations of their own.
func isSamePolicy(is, made *unstructured.Unstructured) bool {
	return apiequality.Semantic.DeepEqual(is.Object["spec"], made.Object["spec"]) && is.Object["specs"] == nil &&
		apiequality.Semantic.DeepEqual(ours(is.GetLabels()), ours(made.GetLabels())) &&
		apiequality.Semantic.DeepEqual(ours(is.GetAnnotations()), ours(made.GetAnnotations())) &&
		apiequality.Semantic.DeepEqual(is.GetOwnerReferences(), made.GetOwnerReferences())
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
