package enforce

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/audit/internal/act"
	"github.com/admitkit/admitkit/operator/internal/kubelet"
)

// kubeletRule checks a request to a kubelet through nodes/proxy. The command of
// such a session is in the query, which the admission request does not have, so
// no session may lead into a namespace where enforcement is on.
func (e *Enforcer) kubeletRule(ctx context.Context, a *act.Act) *violation {
	options, ok := a.Object.(*corev1.NodeProxyOptions)
	if ok && kubelet.IsHarmless(options.Path) {
		return nil
	}
	r := &a.Record
	if r.Namespace == "" {
		return violates(RuleKubelet, "this path may lead into a container, past every rule; use kubectl exec, with an access request")
	}
	on, err := e.isOn(ctx, r.Namespace)
	switch {
	case err != nil:
		return undecided(err)
	case on:
		return violates(RuleKubelet, "this path leads into Pod %s/%s, past every rule; use kubectl exec, with an access request", r.Namespace, r.Pod)
	}
	return nil
}

// isOn reports whether enforcement is on in a namespace. For other ways in, the
// webhook's selector decides.
func (e *Enforcer) isOn(ctx context.Context, name string) (bool, error) {
	if len(e.options.Namespaces) > 0 {
		return slices.Contains(e.options.Namespaces, name), nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := e.grants.client.Get(ctx, types.NamespacedName{Name: name}, namespace)
	if apierrors.IsNotFound(err) {
		return true, nil // the kubelet may read the path differently
	}
	if err != nil {
		return false, fmt.Errorf("reading Namespace %s: %w", name, err)
	}
	return namespace.Labels[Label] == "true", nil
}
