package access

import (
	"context"
	"fmt"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// recordGuard lets nobody but the manager write the record of a grant. RBAC
// refuses it to engineers; whoever may exec anyhow and is held to requests by
// the enforcement of the audit extension, an administrator of a namespace for
// one, may well write Roles, and could turn a grant to another Pod.
type recordGuard struct {
	*Access

	mu sync.Mutex
	me string
}

// recordScope is that of Roles and RoleBindings whose names are ours. Whoever
// deletes one takes access away, which harms nobody.
func (a *Access) recordScope() extension.Scope {
	fail := admissionregistrationv1.Fail
	return extension.Scope{
		Name: "access-record", FailurePolicy: &fail, NamespaceSelector: a.namespaces(),
		Rules: extension.Resources(rbacv1.GroupName, "v1", []string{"roles", "rolebindings"}, admissionregistrationv1.Create, admissionregistrationv1.Update),
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "names-a-grant", Expression: fmt.Sprintf("(has(object.metadata.name) && (object.metadata.name.startsWith('%[1]s') || object.metadata.name.startsWith('%[2]s'))) || "+
				"(has(object.metadata.generateName) && (object.metadata.generateName.startsWith('%[1]s') || object.metadata.generateName.startsWith('%[2]s')))", podAccess.prefix, execAccess.prefix),
		}},
	}
}

// Register connects to the cluster.
func (g *recordGuard) Register(mgr extension.Manager) error { return g.setup(mgr) }

// Validate denies what does not come from the manager.
func (g *recordGuard) Validate(ctx context.Context, _ runtime.Object, req *extension.Request) error {
	me, err := g.identity(ctx)
	if err != nil {
		return err
	}
	if user := req.User().Username; user != me {
		deniedTotal.WithLabelValues("record", v1alpha1.ReasonNotAllowed).Inc()
		return extension.Denyf("%s %s/%s: names that begin with %s and %s are those of grants, which admitkit alone makes, as %s",
			req.Kind.Kind, req.Namespace, req.Name, podAccess.prefix, execAccess.prefix, me)
	}
	return nil
}

// identity returns the name by which the API server knows us.
func (g *recordGuard) identity(ctx context.Context) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.me != "" {
		return g.me, nil
	}
	var review authenticationv1.SelfSubjectReview
	if err := g.writer.Create(ctx, &review); err != nil {
		return "", fmt.Errorf("asking who we are: %w", err)
	}
	g.me = review.Status.UserInfo.Username
	return g.me, nil
}
