package admission

import (
	"context"
	"fmt"
	"maps"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// policyGuard keeps the policies of runs as the manager made them, as long as there are Pods, and refuses
// policies of others that would allow these Pods more. Reconcilers restore a policy within
// moments, but a connection that was opened meanwhile stays open.
type policyGuard struct{ admitted }

// policyScope covers all policies where runs run, since any could select their Pods, and the deletion of ours.
func (g *gate) policyScope() extension.Scope {
	return scope("sandbox-egress", g.selector(), egress.Rules(), admissionregistrationv1.MatchCondition{
		Name: "not-the-end-of-anothers", Expression: fmt.Sprintf("request.operation != 'DELETE' || oldObject.metadata.name.startsWith('%s') || oldObject.metadata.name.startsWith('%s')", owned.PrefixRun, owned.PrefixWorkspace),
	})
}

// widensAny reports whether a policy may select a Pod of any run, or of the seed of any Workspace.
func widensAny(policy *unstructured.Unstructured) bool {
	return egress.Widens(policy, owned.PodLabels(v1alpha1.LabelSandboxRun, "", "")) || egress.Widens(policy, owned.PodLabels(v1alpha1.LabelWorkspace, "", ""))
}

// Validate denies what would let a Pod of a run reach more.
func (g *policyGuard) Validate(ctx context.Context, policy *unstructured.Unstructured, req *extension.Request) error {
	me, err := g.asker.Reconciler(ctx)
	if err != nil || req.User().Username == me {
		return err
	}
	old := &unstructured.Unstructured{}
	if req.Operation == admissionv1.Update {
		if err := req.Old(old); err != nil {
			return err
		}
	}
	unchanged := req.Operation == admissionv1.Update && egress.AllowsTheSame(old, policy)
	if owned.IsOurs(policy) || owned.IsOurs(old) {
		if unchanged && maps.Equal(old.GetLabels(), policy.GetLabels()) || req.Operation == admissionv1.Create {
			return g.validateForeign(policy, req, unchanged)
		}
		return g.keep(ctx, policy, req, me)
	}
	return g.validateForeign(policy, req, unchanged)
}

// validateForeign denies a policy of somebody else that widens.
func (g *policyGuard) validateForeign(policy *unstructured.Unstructured, req *extension.Request, unchanged bool) error {
	if unchanged || req.Operation == admissionv1.Delete || !widensAny(policy) {
		return nil
	}
	return denied(policy.GetKind(), "%s", egress.WidensMessage(policy, owned.Whose))
}

// keep denies to change or delete the policy of a run, as long as it has Pods.
func (g *policyGuard) keep(ctx context.Context, policy *unstructured.Unstructured, req *extension.Request, me string) error {
	if req.Operation == admissionv1.Delete {
		key := v1alpha1.LabelSandboxRun
		if policy.GetLabels()[v1alpha1.LabelWorkspace] != "" {
			key = v1alpha1.LabelWorkspace
		}
		pod, err := onePod(ctx, g.asker, client.InNamespace(req.Namespace), client.MatchingLabels{key: policy.GetLabels()[key], v1alpha1.LabelManagedBy: owned.ManagedBy})
		if err != nil || pod == "" {
			return err
		}
		return denied(policy.GetKind(), "%s %s/%s holds Pod %s, and goes when that is gone: delete its SandboxRun", policy.GetKind(), req.Namespace, policy.GetName(), pod)
	}
	return denied(policy.GetKind(), "%s %s/%s belongs to a SandboxRun: only admitkit changes it, as %s", policy.GetKind(), req.Namespace, policy.GetName(), me)
}

// onePod returns the name of a Pod that is selected, "" if there is none.
func onePod(ctx context.Context, reader client.Reader, selection ...client.ListOption) (string, error) {
	var pods metav1.PartialObjectMetadataList
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := reader.List(ctx, &pods, append(selection, client.Limit(1))...); err != nil || len(pods.Items) == 0 {
		return "", err
	}
	return pods.Items[0].Name, nil
}
