package admission

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// reportGuard lets only the manager say which Pod or role a request is about, by which
// command it is used (kubectl access --shell runs that with the engineer's rights),
// when it was approved, from which the end of access follows, and what its check said.
// The rest of the status is corrected within moments, or can only take access away.
type reportGuard[T v1alpha1.Request] struct{ *kube.Connection }

// reportScope covers the writes of the status that the guard is about. Clearing these
// fields takes access away, which an uninstall does while no manager answers.
func reportScope(a *kube.Connection, name, resource string) extension.Scope {
	written := func(field string) string {
		return fmt.Sprintf("(has(object.status.%[1]s) && object.status.%[1]s != '' && "+
			"!(has(oldObject.status) && has(oldObject.status.%[1]s) && oldObject.status.%[1]s == object.status.%[1]s))", field)
	}
	const egress = "(has(object.status.egress) && !(has(oldObject.status) && has(oldObject.status.egress) && oldObject.status.egress == object.status.egress))"
	const revokedBefore = "(has(object.status.revokedAt) && timestamp(object.status.revokedAt) < timestamp(object.metadata.creationTimestamp))"
	fail := admissionregistrationv1.Fail
	return extension.Scope{
		Name: name, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.Selector(),
		Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, []string{resource + "/status"}, admissionregistrationv1.Update),
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "says-what-is-run",
			Expression: fmt.Sprintf("has(object.status) && (%s || %s || %s || %s || %s || %s || %s || %s || %s || %s)",
				written("podName"), written("podUID"), written("grantedRole"), written("accessMessage"), written("approvedAt"), written("verdicts"), written("check"), written("grantedAt"), egress, revokedBefore),
		}},
	}
}

// Register connects to the cluster.
func (g *reportGuard[T]) Register(mgr extension.Manager) error { return g.Setup(mgr) }

// Validate denies what the manager does not write, and a revocation that nobody can
// have made.
func (g *reportGuard[T]) Validate(ctx context.Context, obj T, req *extension.Request) error {
	created := obj.GetCreationTimestamp()
	if at := obj.GetRequestStatus().RevokedAt; at.Before(&created) {
		deniedTotal.WithLabelValues("report", rules.ReasonChanged).Inc()
		return extension.Deny("status.revokedAt lies before the request was made; to revoke it set spec.revoked")
	}
	me, err := g.Self.Reconciler(ctx)
	if err != nil {
		return err
	}
	if user := req.User().Username; user != me {
		deniedTotal.WithLabelValues("report", v1alpha1.ReasonNotAllowed).Inc()
		return extension.Denyf("status.podName, podUID and accessMessage say what kubectl access --shell runs, grantedRole what was granted, approvedAt, verdicts, check and grantedAt who approved and when, and egress what the Pod may reach: "+
			"only admitkit writes them, as %s", me)
	}
	return nil
}
