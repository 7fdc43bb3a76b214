package access

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestOnlyRolesThatAreNamedCanBeGranted(t *testing.T) {
	here, all := namespaceSet{named: []string{"apps", "shop"}}, namespaceSet{own: "admitkit-system"}
	for sentence, test := range map[string]struct {
		places              namespaceSet
		roles, clusterRoles []string
		want                string
	}{
		"a Role and a ClusterRole":                {here, []string{"shop/deployer"}, []string{"system:view"}, ""},
		"a Role in any namespace":                 {all, []string{"other/deployer"}, nil, ""},
		"a Role without a namespace":              {here, []string{"deployer"}, nil, `Roles: "deployer": write NAMESPACE/NAME`},
		"a Role where no access is granted":       {here, []string{"other/deployer"}, nil, "no access is granted in namespace other: add it to Namespaces"},
		"a Role of the control plane":             {all, []string{"kube-system/deployer"}, nil, "no access is granted in namespace kube-system"},
		"a Role of the manager's own":             {all, []string{"admitkit-system/deployer"}, nil, "no access is granted in namespace admitkit-system"},
		"a pattern":                               {here, nil, []string{"*"}, "a pattern is not a role's name"},
		"a name that is none":                     {here, []string{"shop/"}, nil, "the name of the role is empty"},
		"more than what fits into a Role's rules": {here, nil, make([]string, 1001), "1001 roles, of at most 1000"},
	} {
		if _, err := newGrantable(test.roles, test.clusterRoles, test.places); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", sentence, err, test.want)
		}
	}
	g, err := newGrantable([]string{"shop/deployer", "shop/deployer", "apps/reader"}, []string{"view"}, here)
	if err != nil {
		t.Fatal(err)
	}
	for sentence, test := range map[string]struct {
		namespace string
		ref       v1alpha1.AccessRoleRef
		want      string
	}{
		"the Role":                           {"shop", v1alpha1.AccessRoleRef{Kind: "Role", Name: "deployer"}, ""},
		"the ClusterRole":                    {"apps", v1alpha1.AccessRoleRef{Kind: "ClusterRole", Name: "view"}, ""},
		"a Role of its name elsewhere":       {"apps", v1alpha1.AccessRoleRef{Kind: "Role", Name: "deployer"}, "--access-role=apps/deployer"},
		"a ClusterRole of the Role's name":   {"shop", v1alpha1.AccessRoleRef{Kind: "ClusterRole", Name: "deployer"}, "--access-cluster-role=deployer"},
		"a Role of the ClusterRole's name":   {"shop", v1alpha1.AccessRoleRef{Kind: "Role", Name: "view"}, "--access-role=shop/view"},
		"what is neither Role nor of a name": {"shop", v1alpha1.AccessRoleRef{Kind: "role", Name: "deployer"}, "--access-role=shop/deployer"},
	} {
		refused := g.refuses(test.namespace, test.ref)
		if (refused != nil) != (test.want != "") || refused != nil && !strings.Contains(refused.message, test.want) {
			t.Errorf("%s: %v, want %q", sentence, refused, test.want)
		}
	}
}

// The operator names fewer roles than before, or the role is another now.
func TestAGrantOfARoleThatCannotBeGrantedAnyMoreEnds(t *testing.T) {
	granted := func(f *facts) {
		record, err := newRole(f.kind, f.request, f.template.GetAccessConfig(), choice{role: "Role", name: "deployer", uid: "u"})
		if err != nil {
			t.Fatal(err)
		}
		f.role = record
		if f.binding, err = newBinding(f.kind, f.request, record); err != nil {
			t.Fatal(err)
		}
	}
	unnamed := func(f *facts) {
		f.noRole = grantable{}.refuses("shop", v1alpha1.AccessRoleRef{Kind: "Role", Name: "deployer"})
	}
	for sentence, test := range map[string]struct {
		facts *facts
		does  []string
		says  string
	}{
		"a role is granted":               {about(roleAccess, func(f *facts) { f.newRole = choice{role: "Role", name: "deployer", uid: "u"} }), []string{"grant"}, "ready=false"},
		"a grant is left alone":           {about(roleAccess, granted), nil, "ready=true"},
		"the operator does not name it":   {about(roleAccess, granted, unnamed), []string{"unbind"}, "RoleNotAllowed"},
		"the operator has never named it": {about(roleAccess, unnamed), nil, "RoleNotAllowed"},
		"the role is lost":                {about(roleAccess, granted, func(f *facts) { f.noRole = lostRole(choiceOf(f.role), "is gone") }), []string{"unbind"}, "RoleLost"},
		"the binding is to another role":  {about(roleAccess, granted, func(f *facts) { f.binding.RoleRef.Name = "admin" }), []string{"unbind"}, ""},
		"the binding is to a ClusterRole": {about(roleAccess, granted, func(f *facts) { f.binding.RoleRef.Kind = "ClusterRole" }), []string{"unbind"}, ""},
		"the binding is for one more": {about(roleAccess, granted, func(f *facts) {
			f.binding.Subjects = append(f.binding.Subjects, rbacv1.Subject{Kind: rbacv1.UserKind, Name: "mallory"})
		}), []string{"unbind"}, ""},
		"the binding is not the request's":      {about(roleAccess, granted, func(f *facts) { f.binding.OwnerReferences = nil }), []string{"unbind"}, ""},
		"the record was deleted with the role":  {about(roleAccess, func(f *facts) { f.noRole = lostRole(choice{role: "Role", name: "deployer"}, "is gone") }), nil, "RoleLost"},
		"the template says to evict the target": {about(roleAccess, granted, isGone, func(f *facts) { f.template.GetAccessConfig().OnExpiry = v1alpha1.ExpiryEvict }), []string{"unbind", "unrecord"}, ""},
	} {
		d := decide(test.facts, created.Add(time.Minute))
		if does := d.does(); fmt.Sprint(does) != fmt.Sprint(test.does) {
			t.Errorf("%s: it does %q, want %q", sentence, does, test.does)
		}
		if says := d.says(v1alpha1.ConditionAccessResourcesCreated); says != test.says {
			t.Errorf("%s: it says %q, want %q", sentence, says, test.says)
		}
	}
}
