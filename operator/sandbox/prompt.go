package sandbox

import (
	"context"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// checkPromptFrom refuses a prompt that its author may not read: the run would read it for
// them. Nobody here reads it: the kubelet mounts it.
func (r *runRules) checkPromptFrom(ctx context.Context, from *v1alpha1.SandboxPromptSource, req *extension.Request) error {
	resource, field, key := "secrets", "secretKeyRef", (*v1alpha1.SandboxKey)(nil)
	switch {
	case from == nil:
		return nil
	case from.ConfigMapKeyRef != nil:
		resource, field, key = "configmaps", "configMapKeyRef", from.ConfigMapKeyRef
	case from.SecretKeyRef != nil:
		key = from.SecretKeyRef
	default:
		return denied("SandboxRun", "spec.promptFrom: exactly one of configMapKeyRef and secretKeyRef must be set")
	}
	may, err := r.may(ctx, req, "get", "", "v1", resource, key.Name)
	if err == nil && !may {
		err = denied("SandboxRun", "spec.promptFrom.%s: user %q has not the right to get %s %s/%s, which the run would read for them", field, req.User().Username, resource, req.Namespace, key.Name)
	}
	return err
}

func sameButCancelled(old, spec *v1alpha1.SandboxRunSpec) bool {
	before, after := *old, *spec
	before.Cancelled, after.Cancelled = false, false
	return apiequality.Semantic.DeepEqual(before, after)
}
