package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// grantable are the roles that the operator lets requests have. To bind them the
// reconcilers have the right bind on exactly these.
type grantable struct {
	// roles are the names of Roles by their namespaces; clusterRoles are the same in each
	// namespace. All are sorted.
	roles        map[string][]string
	clusterRoles []string
}

// maxGrantable bounds how many roles can be named: they become part of a Role.
const maxGrantable = 1000

// newGrantable returns the roles of the options.
func newGrantable(roles, clusterRoles []string, places namespaceSet) (grantable, error) {
	g := grantable{roles: map[string][]string{}}
	if len(roles)+len(clusterRoles) > maxGrantable {
		return g, fmt.Errorf("Roles, ClusterRoles: %d roles, of at most %d", len(roles)+len(clusterRoles), maxGrantable)
	}
	for _, text := range roles {
		role, err := cluster.ParseRole(text)
		if err != nil {
			return g, fmt.Errorf("Roles: %w", err)
		}
		if !places.include(role.Namespace) {
			return g, fmt.Errorf("Roles: %q: no access is granted in namespace %s: add it to Namespaces", text, role.Namespace)
		}
		g.roles[role.Namespace] = append(g.roles[role.Namespace], role.Name)
	}
	for _, name := range clusterRoles {
		if err := cluster.CheckClusterRole(name); err != nil {
			return g, fmt.Errorf("ClusterRoles: %w", err)
		}
		g.clusterRoles = append(g.clusterRoles, name)
	}
	for namespace, names := range g.roles {
		g.roles[namespace] = slices.Compact(slices.Sorted(slices.Values(names)))
	}
	g.clusterRoles = slices.Compact(slices.Sorted(slices.Values(g.clusterRoles)))
	return g, nil
}

func (g grantable) none() bool { return len(g.roles)+len(g.clusterRoles) == 0 }

// refuses says why a role cannot be granted in a namespace, nil if the operator names it.
func (g grantable) refuses(namespace string, ref v1alpha1.AccessRoleRef) *refusal {
	var flag string
	switch {
	case ref.Kind == "ClusterRole" && slices.Contains(g.clusterRoles, ref.Name), ref.Kind == "Role" && slices.Contains(g.roles[namespace], ref.Name):
		return nil
	case ref.Kind == "ClusterRole":
		flag = "--access-cluster-role=" + ref.Name + ", or access.clusterRoles of the chart"
	default:
		flag = "--access-role=" + namespace + "/" + ref.Name + ", or access.roles of the chart"
	}
	return refuse(v1alpha1.ReasonRoleNotAllowed, "admitkit grants no %s: its operator must name that role (%s), with which admitkit gets the right to bind it and no other",
		cluster.Role(ref.RoleRef(), namespace), flag)
}

// off refuses what is about roles while the operator names none.
func (g grantable) off(k kind) *refusal {
	if !k.givesRole || !g.none() {
		return nil
	}
	return refuse(v1alpha1.ReasonRoleNotAllowed, "admitkit grants no roles here: its operator must name those that it may (--access-role=NAMESPACE/NAME or --access-cluster-role=NAME, access.roles or access.clusterRoles of the chart)")
}

// bindRules are the rights to bind what is named, in a namespace.
func (g grantable) bindRules(namespace string) (rules []rbacv1.PolicyRule) {
	if names := g.roles[namespace]; len(names) > 0 {
		rules = append(rules, roleRule("roles", names, "bind"))
	}
	return append(rules, g.bindClusterRules()...)
}

func (g grantable) bindClusterRules() []rbacv1.PolicyRule {
	if len(g.clusterRoles) == 0 {
		return nil
	}
	return []rbacv1.PolicyRule{roleRule("clusterroles", g.clusterRoles, "bind")}
}

// roleRule is a rule for roles that are named one by one.
func roleRule(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}

// namespaced are the rights on the Roles that are named, each in its namespace: a
// ClusterRole would let that name be bound everywhere.
func (g grantable) namespaced() map[string][]rbacv1.PolicyRule {
	rules := make(map[string][]rbacv1.PolicyRule, len(g.roles))
	for _, namespace := range slices.Sorted(maps.Keys(g.roles)) {
		rules[namespace] = []rbacv1.PolicyRule{roleRule("roles", g.roles[namespace], "bind")}
	}
	return rules
}

// watchRules are the rights to learn which ClusterRoles there are, and when one goes.
func (g grantable) watchRules() []rbacv1.PolicyRule {
	if len(g.clusterRoles) == 0 {
		return nil
	}
	return []rbacv1.PolicyRule{roleRule("clusterroles", g.clusterRoles, "get", "list", "watch")}
}

// roleOf returns the role that a template names, as the API server has it now. A missing
// role is a NotFound error.
func (a *shared) roleOf(ctx context.Context, t v1alpha1.Template) (choice, error) {
	ref := t.(*v1alpha1.RoleAccessTemplate).Spec.RoleRef
	uid, err := cluster.RoleUID(ctx, a.live, ref.RoleRef(), t.GetNamespace())
	return choice{role: ref.Kind, name: ref.Name, uid: uid}, err
}

// mayNot says why the author of a template cannot give the role that it names: they must
// hold the right to bind it now, as when they wrote the template.
func (a *shared) mayNot(ctx context.Context, t *v1alpha1.RoleAccessTemplate) (*refusal, error) {
	if refused := a.roles.refuses(t.Namespace, t.Spec.RoleRef); refused != nil {
		return refused, nil
	}
	author := t.Spec.Author
	if author == nil || author.Username == "" {
		return refuse(v1alpha1.ReasonRoleNotAllowed, "template %q: spec.author is empty: the template did not pass admission; make it again", t.Name), nil
	}
	allowed, why, err := cluster.MayBind(ctx, a.writer, author.UserInfo(), t.Spec.RoleRef.RoleRef(), t.Namespace)
	if err != nil || allowed {
		return nil, err
	}
	return refuse(v1alpha1.ReasonRoleNotAllowed, "template %q: its author must hold the right to bind the role, or it would give what they cannot: %s", t.Name, why), nil
}

// readNewRole finds out whether a request can get the role of its template, and which that is.
func (r *requests) readNewRole(ctx context.Context, f *facts) error {
	t := f.template.(*v1alpha1.RoleAccessTemplate)
	if allows(t, f.request.GetRequestSpec()) != nil || f.waitsForApproval() {
		return nil //nolint:nilerr // the role does not matter yet
	}
	refused, err := r.mayNot(ctx, t)
	if err != nil {
		return err
	}
	if refused == nil {
		f.newRole, err = r.roleOf(ctx, t)
		refused, err = f.missesRole(f.newRole, err)
	}
	if refused != nil {
		f.noRole = refused.forNow()
	}
	return err
}

// missesRole says that the role does not exist, or is not the one that the request had.
func (f *facts) missesRole(found choice, err error) (*refusal, error) {
	settled := f.settled()
	if f.role != nil {
		settled = choiceOf(f.role)
	}
	switch {
	case apierrors.IsNotFound(err) && settled == choice{}:
		return refuse(v1alpha1.ReasonTargetMissing, "%s %s does not exist", found.role, found.name), nil
	case apierrors.IsNotFound(err):
		return lostRole(settled, "is gone"), nil
	case err != nil:
		return nil, err
	case settled != choice{} && settled != found:
		return lostRole(settled, "was replaced by another of the same name"), nil
	}
	return nil, nil
}

func lostRole(role choice, what string) *refusal {
	return refuse(v1alpha1.ReasonRoleLost, "%s %s; make another request", role, what)
}

// readGrantedRole finds out whether the role of a grant is still the one that was granted,
// and may be. The author of the template is asked about again where a RoleBinding is
// missing: to make it is to grant.
func (r *requests) readGrantedRole(ctx context.Context, f *facts) error {
	was := choiceOf(f.role)
	if settled := f.settled(); settled != (choice{}) && settled != was {
		f.noRole = lostRole(was, "is not the one that status.grantedRole names")
		return nil
	}
	ref := v1alpha1.AccessRoleRef{Kind: was.role, Name: was.name}
	if f.noRole = r.roles.refuses(f.key.Namespace, ref); f.noRole != nil {
		return nil //nolint:nilerr // decide tells
	}
	uid, err := cluster.RoleUID(ctx, r.live, ref.RoleRef(), f.key.Namespace)
	if f.noRole, err = f.missesRole(choice{role: was.role, name: was.name, uid: uid}, err); err != nil || f.noRole != nil || f.binding != nil {
		return err
	}
	t := &v1alpha1.RoleAccessTemplate{}
	err = r.cached.Get(ctx, types.NamespacedName{Namespace: f.key.Namespace, Name: f.request.GetRequestSpec().TemplateName}, t)
	if apierrors.IsNotFound(err) {
		return nil // missTemplate has the last word
	}
	if err != nil {
		return err
	}
	if f.noRole, err = r.mayNot(ctx, t); f.noRole != nil {
		f.noRole.waits = true
	}
	return err
}

// roleTemplates stamps templates for roles with their authors, and admits those whose author
// may bind the role.
type roleTemplates struct{ *shared }

// Register connects to the cluster.
func (v *roleTemplates) Register(mgr extension.Manager) error { return v.setup(mgr) }

// Mutate writes who answers for the template: who makes it, or changes its spec, with which
// they could let others have the role.
func (v *roleTemplates) Mutate(_ context.Context, t *v1alpha1.RoleAccessTemplate, req *extension.Request) error {
	old, err := v.unchanged(t, req)
	if err != nil {
		return err
	}
	if old != nil {
		t.Spec.Author = old.Spec.Author
		return nil
	}
	t.Spec.Author = v1alpha1.AuthorOf(req.User())
	return nil
}

// unchanged returns the template before an update that leaves its spec as it was, but for
// the author, which a manifest that is applied again lacks.
func (v *roleTemplates) unchanged(t *v1alpha1.RoleAccessTemplate, req *extension.Request) (*v1alpha1.RoleAccessTemplate, error) {
	if req.Operation != admissionv1.Update {
		return nil, nil
	}
	old := &v1alpha1.RoleAccessTemplate{}
	if err := req.Old(old); err != nil {
		return nil, err
	}
	before, after := old.Spec.DeepCopy(), t.Spec.DeepCopy()
	before.Author, after.Author = nil, nil
	if apiequality.Semantic.DeepEqual(before, after) {
		return old, nil
	}
	return nil, nil
}

// Validate refuses templates that could give nobody access, or more than their authors have.
func (v *roleTemplates) Validate(ctx context.Context, t *v1alpha1.RoleAccessTemplate, req *extension.Request) error {
	err := v.validate(ctx, t, req)
	if refused, ok := errors.AsType[*refusal](err); ok {
		deniedTotal.WithLabelValues("template", refused.reason).Inc()
		return extension.Deny(refused.message)
	}
	return err
}

func (v *roleTemplates) validate(ctx context.Context, t *v1alpha1.RoleAccessTemplate, req *extension.Request) error {
	old, err := v.unchanged(t, req)
	if err != nil {
		return err
	}
	if old != nil {
		if !apiequality.Semantic.DeepEqual(t.Spec.Author, old.Spec.Author) { // a webhook after ours did it
			return refuse(reasonChanged, "spec.author cannot be changed; leave it out")
		}
		return nil
	}
	if refused := cmp.Or(v.places.closed(req.Namespace), v.roles.off(roleAccess)); refused != nil {
		return refused
	}
	if _, err := v.validateConfig(&t.Spec.AccessConfig); err != nil {
		return err
	}
	if !t.Spec.Author.Is(req.User()) {
		return refuse(reasonChanged, "spec.author does not name the user who writes the template, %q: leave it out", req.User().Username)
	}
	named := t.DeepCopy() // a name that is yet to be generated
	named.Namespace = req.Namespace
	refused, err := v.mayNot(ctx, named)
	if refused != nil {
		return refuse(refused.reason, "spec.roleRef: %s", strings.TrimPrefix(refused.message, fmt.Sprintf("template %q: ", named.Name)))
	}
	return err
}
