package access

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
)

// recordGuard lets only the manager write the record of a grant. RBAC already stops
// engineers. But an administrator of a namespace may write Roles, and where the
// enforcement of the audit extension makes even them ask for access, could turn a
// grant to another Pod.
type recordGuard struct {
	*shared
	self cluster.Self
}

// recordScope covers Roles and RoleBindings whose names are ours. It leaves deletion
// alone: it takes access away, which harms nobody.
func (a *shared) recordScope() extension.Scope {
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

// Validate denies what the manager does not write.
func (g *recordGuard) Validate(ctx context.Context, _ runtime.Object, req *extension.Request) error {
	me, err := g.self.Username(ctx, g.writer)
	if err != nil {
		return err
	}
	if user := req.User().Username; user != me {
		deniedTotal.WithLabelValues("record", v1alpha1.ReasonNotAllowed).Inc()
		return extension.Denyf("%s %s/%s: names that begin with %s and %s belong to grants, which admitkit alone makes, as %s",
			req.Kind.Kind, req.Namespace, req.Name, podAccess.prefix, execAccess.prefix, me)
	}
	return nil
}
