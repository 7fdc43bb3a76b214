package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// policyGuard keeps the policies of access Pods as the manager made them, as long as the Pods are there, and
// refuses policies of others that would allow these Pods more. Reconcilers restore a policy
// within moments, but a connection that was opened meanwhile stays open.
type policyGuard struct{ *kube.Connection }

var _ extension.Validator[*unstructured.Unstructured] = (*policyGuard)(nil)

// policyScope covers all policies where access is granted, since any could select an access
// Pod, and the deletion of those whose names are ours. The name of the request is empty when a
// collection is deleted.
func policyScope(a *kube.Connection) extension.Scope {
	fail := admissionregistrationv1.Fail
	return extension.Scope{
		Name: "access-egress", FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.SelectorOfPods(),
		Rules: egress.Rules(),
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "not-the-end-of-anothers", Expression: fmt.Sprintf("request.operation != 'DELETE' || oldObject.metadata.name.startsWith('%s')", grant.PodAccess.Prefix),
		}},
	}
}

// Register connects to the cluster.
func (g *policyGuard) Register(mgr extension.Manager) error { return g.Setup(mgr) }

// Validate denies what would let an access Pod reach more.
func (g *policyGuard) Validate(ctx context.Context, policy *unstructured.Unstructured, req *extension.Request) error {
	me, err := g.Self.Reconciler(ctx)
	if err != nil || req.User().Username == me {
		return err
	}
	key := types.NamespacedName{Namespace: req.Namespace, Name: policy.GetName()}
	if _, ours := grant.PodAccess.Owner(key); ours {
		return g.keep(ctx, policy, req, key, me)
	}
	if req.Operation == admissionv1.Delete || !egress.Widens(policy, rules.LabelsOfHeld()) {
		return nil
	}
	if req.Operation == admissionv1.Update {
		old := &unstructured.Unstructured{}
		if err := req.Old(old); err != nil {
			return err
		}
		if egress.AllowsTheSame(old, policy) {
			return nil // it was there before
		}
	}
	deniedTotal.WithLabelValues("egress", v1alpha1.ReasonEgressWidened).Inc()
	return extension.Denyf("%s", egress.WidensMessage(policy, rules.AccessPods))
}

// keep denies to make, change or delete a policy whose name is ours. One whose Pod is gone may go: the garbage
// collector deletes it, and who deletes the namespace.
func (g *policyGuard) keep(ctx context.Context, policy *unstructured.Unstructured, req *extension.Request, key types.NamespacedName, me string) error {
	switch req.Operation {
	case admissionv1.Update:
		old := &unstructured.Unstructured{}
		if err := req.Old(old); err != nil {
			return err
		}
		if harmless(old, policy) {
			return nil
		}
	case admissionv1.Delete:
		pod, err := g.LivePod(ctx, key)
		if err != nil || pod == nil {
			return err
		}
		deniedTotal.WithLabelValues("egress", rules.ReasonChanged).Inc()
		return extension.Denyf("%s %s holds the access Pod of its name, and goes when that is gone: delete the Pod or its request, or revoke the request", req.Kind.Kind, key)
	}
	deniedTotal.WithLabelValues("egress", rules.ReasonChanged).Inc()
	return extension.Denyf("%s %s: names that begin with %s belong to the policies of access Pods, which admitkit alone makes and changes, as %s", req.Kind.Kind, key, grant.PodAccess.Prefix, me)
}
