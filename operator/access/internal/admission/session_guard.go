package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// guard refuses sessions when access is over, in every replica and whatever the
// reconcilers do. It allows nothing: RBAC decides before admission.
type guard struct{ *kube.Connection }

var _ extension.Validator[runtime.Object] = (*guard)(nil)

// Register connects to the cluster.
func (g *guard) Register(mgr extension.Manager) error { return g.Setup(mgr) }

// Validate decides about a session that is about to begin.
func (g *guard) Validate(ctx context.Context, _ runtime.Object, req *extension.Request) error {
	pod := types.NamespacedName{Namespace: req.Namespace, Name: req.Name}
	over, err := g.overPod(ctx, pod)
	if err == nil && over == "" {
		over, err = g.overGrant(ctx, pod, req)
	}
	if err != nil {
		return err
	}
	if over != "" {
		deniedTotal.WithLabelValues("session", rules.ReasonEnded).Inc()
		return extension.Denyf("%s on Pod %s: %s; make another request", req.SubResource, pod, over)
	}
	return nil
}

// graceGuard refuses deletions that give an access Pod longer than its template does. The reconcilers shorten what was
// allowed nevertheless, but the kubelet takes minutes to see that.
type graceGuard struct{ *kube.Connection }

var _ extension.Validator[*unstructured.Unstructured] = (*graceGuard)(nil)

// Register connects to the cluster.
func (g *graceGuard) Register(mgr extension.Manager) error { return g.Setup(mgr) }

// Validate denies a deletion or an eviction after which the Pod could outlive access.
func (g *graceGuard) Validate(ctx context.Context, object *unstructured.Unstructured, req *extension.Request) error {
	pod, err := cluster.Lengthened(ctx, g.Live, object, req)
	if err != nil || pod == nil {
		return err
	}
	if _, ours := grant.PodAccess.Owner(client.ObjectKeyFromObject(pod)); !ours {
		return nil
	}
	deniedTotal.WithLabelValues("deletion", v1alpha1.ReasonNotAllowed).Inc()
	return extension.Denyf("Pod %s/%s is an access Pod, and ends within %d s of its deletion, so that it does not outlive access: leave out gracePeriodSeconds (kubectl: --grace-period)",
		pod.Namespace, pod.Name, *pod.Spec.TerminationGracePeriodSeconds)
}

// overPod says why access to an access Pod is over. It relies on the request, not on
// what the Pod says of itself.
func (g *guard) overPod(ctx context.Context, pod types.NamespacedName) (string, error) {
	owner, ok := grant.PodAccess.Owner(pod)
	if !ok {
		return "", nil
	}
	req, err := g.request(ctx, grant.PodAccess, owner)
	if apierrors.IsNotFound(err) {
		// The name alone does not make it an access Pod.
		var own corev1.Pod
		if err := g.Cached.Get(ctx, pod, &own); err != nil {
			return "", client.IgnoreNotFound(err)
		}
		return "its request is gone", nil
	}
	if err != nil {
		return "", err
	}
	if over := g.over(req); over != "" {
		return over, nil
	}
	role, err := kube.Get(ctx, g.Cached, pod, &rbacv1.Role{})
	if err != nil || role == nil {
		return "", err
	}
	return g.replaced(ctx, role)
}

// overGrant says why a user's exec access to a Pod is over, while the RoleBinding
// still exists. Once that is deleted, RBAC alone decides.
func (g *guard) overGrant(ctx context.Context, pod types.NamespacedName, session *extension.Request) (string, error) {
	roles, err := g.RolesOf(ctx, pod)
	if err != nil {
		return "", err
	}
	over := ""
	for i := range roles {
		role := client.ObjectKeyFromObject(&roles[i])
		owner, ok := grant.ExecAccess.Owner(role)
		if !ok {
			continue
		}
		var binding rbacv1.RoleBinding
		if err := g.Cached.Get(ctx, role, &binding); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return "", err
		}
		if user := session.User(); !v1alpha1.Concerns(binding.Subjects, user.Username, user.Groups) {
			continue
		}
		req, err := g.request(ctx, grant.ExecAccess, owner)
		if apierrors.IsNotFound(err) {
			over = "the request " + owner.Name + " is gone"
			continue
		}
		if err != nil {
			return "", err
		}
		reason := g.over(req)
		if reason == "" {
			reason, err = g.replaced(ctx, &roles[i])
		}
		if err != nil || reason == "" {
			return "", err // a request of theirs is live
		}
		over = reason
	}
	return over, nil
}

// replaced says that a grant is for an earlier Pod of the same name. The garbage
// collector deletes its RoleBinding, but later than a StatefulSet makes the next Pod.
func (g *guard) replaced(ctx context.Context, role *rbacv1.Role) (string, error) {
	chosen := grant.ChoiceOf(role)
	pod, err := g.LivePod(ctx, types.NamespacedName{Namespace: role.Namespace, Name: chosen.Name})
	if err != nil || pod == nil || pod.UID == chosen.UID {
		return "", err // without a Pod there is no session
	}
	return fmt.Sprintf("access was granted to an earlier Pod of this name, with the UID %s", chosen.UID), nil
}

// request reads a request from the cache, or from the API server if it is too new
// for the cache.
func (g *guard) request(ctx context.Context, k grant.Kind, key types.NamespacedName) (v1alpha1.Request, error) {
	req := k.NewRequest()
	err := g.Cached.Get(ctx, key, req)
	if apierrors.IsNotFound(err) {
		err = g.Live.Get(ctx, key, req)
	}
	return req, err
}

// over says why the access of a request is over, "" if it is not.
func (g *guard) over(req v1alpha1.Request) string {
	end, err := v1alpha1.EndOf(req)
	switch {
	case err != nil || req.GetRequestSpec().Duration == "":
		return "the duration of request " + req.GetName() + " is not valid"
	case !req.GetDeletionTimestamp().IsZero():
		return "the request " + req.GetName() + " is being deleted"
	case v1alpha1.Over(req, g.Clock.Now()):
		return "access by request " + req.GetName() + " ended at " + end.UTC().Format("2006-01-02T15:04:05Z")
	}
	return ""
}
