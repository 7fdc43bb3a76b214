package sandbox

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// checkPromptFrom refuses a prompt that its author may not read: the run would read it for
// them. Nobody here reads it: the kubelet mounts it.
func (r *runRules) checkPromptFrom(ctx context.Context, from *v1alpha1.HarnessPromptSource, req *extension.Request) error {
	resource, field, key := "secrets", "secretKeyRef", (*v1alpha1.HarnessKey)(nil)
	switch {
	case from == nil:
		return nil
	case from.ConfigMapKeyRef != nil:
		resource, field, key = "configmaps", "configMapKeyRef", from.ConfigMapKeyRef
	case from.SecretKeyRef != nil:
		key = from.SecretKeyRef
	default:
		return denied("HarnessRun", "spec.promptFrom: exactly one of configMapKeyRef and secretKeyRef must be set")
	}
	user := req.User()
	review := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace}, Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: req.Namespace, Verb: "get", Version: "v1", Resource: resource, Name: key.Name},
	}}
	for name, values := range user.Extra {
		review.Spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	if err := r.asker.Create(ctx, review); err != nil {
		return fmt.Errorf("asking whether user %q may get %s %s/%s: %w", user.Username, resource, req.Namespace, key.Name, err)
	}
	if review.Status.Denied || !review.Status.Allowed {
		return denied("HarnessRun", "spec.promptFrom.%s: user %q has not the right to get %s %s/%s, which the run would read for them", field, user.Username, resource, req.Namespace, key.Name)
	}
	return nil
}

func hasFinalizer(run *v1alpha1.HarnessRun) bool {
	return slices.Contains(run.Finalizers, v1alpha1.FinalizerHarnessRun)
}

func sameButCancelled(old, spec *v1alpha1.HarnessRunSpec) bool {
	before, after := *old, *spec
	before.Cancelled, after.Cancelled = false, false
	return apiequality.Semantic.DeepEqual(before, after)
}
