package decision

import (
	"fmt"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The operator names fewer roles than before, or the role is another now.
func TestAGrantOfARoleThatCannotBeGrantedAnyMoreEnds(t *testing.T) {
	granted := func(f *facts.Facts) {
		record, err := grant.NewRole(f.Kind, f.Request, f.Template.GetAccessConfig(), grant.Choice{Role: "Role", Name: "deployer", UID: "u"})
		if err != nil {
			t.Fatal(err)
		}
		f.Role = record
		if f.Binding, err = grant.NewBinding(f.Kind, f.Request, record); err != nil {
			t.Fatal(err)
		}
	}
	unnamed := func(f *facts.Facts) {
		f.NoRole = rules.Roles{}.Refuses("shop", v1alpha1.AccessRoleRef{Kind: "Role", Name: "deployer"})
	}
	for sentence, test := range map[string]struct {
		facts *facts.Facts
		does  []string
		says  string
	}{
		"a role is granted":               {factstest.About(grant.RoleAccess, func(f *facts.Facts) { f.NewRole = grant.Choice{Role: "Role", Name: "deployer", UID: "u"} }), []string{"grant"}, "ready=false"},
		"a grant is left alone":           {factstest.About(grant.RoleAccess, granted), nil, "ready=true"},
		"the operator does not name it":   {factstest.About(grant.RoleAccess, granted, unnamed), []string{"unbind"}, "RoleNotAllowed"},
		"the operator has never named it": {factstest.About(grant.RoleAccess, unnamed), nil, "RoleNotAllowed"},
		"the role is lost":                {factstest.About(grant.RoleAccess, granted, func(f *facts.Facts) { f.NoRole = rules.LostRole(grant.ChoiceOf(f.Role), "is gone") }), []string{"unbind"}, "RoleLost"},
		"the binding is to another role":  {factstest.About(grant.RoleAccess, granted, func(f *facts.Facts) { f.Binding.RoleRef.Name = "admin" }), []string{"unbind"}, ""},
		"the binding is to a ClusterRole": {factstest.About(grant.RoleAccess, granted, func(f *facts.Facts) { f.Binding.RoleRef.Kind = "ClusterRole" }), []string{"unbind"}, ""},
		"the binding is for one more": {factstest.About(grant.RoleAccess, granted, func(f *facts.Facts) {
			f.Binding.Subjects = append(f.Binding.Subjects, rbacv1.Subject{Kind: rbacv1.UserKind, Name: "mallory"})
		}), []string{"unbind"}, ""},
		"the binding is not the request's": {factstest.About(grant.RoleAccess, granted, func(f *facts.Facts) { f.Binding.OwnerReferences = nil }), []string{"unbind"}, ""},
		"the record was deleted with the role": {factstest.About(grant.RoleAccess, func(f *facts.Facts) {
			f.NoRole = rules.LostRole(grant.Choice{Role: "Role", Name: "deployer"}, "is gone")
		}), nil, "RoleLost"},
		"the template says to evict the target": {factstest.About(grant.RoleAccess, granted, factstest.IsGone, func(f *facts.Facts) { f.Template.GetAccessConfig().OnExpiry = v1alpha1.ExpiryEvict }), []string{"unbind", "unrecord"}, ""},
	} {
		d := Of(test.facts, factstest.Created.Add(time.Minute))
		if done := does(d); fmt.Sprint(done) != fmt.Sprint(test.does) {
			t.Errorf("%s: it does %q, want %q", sentence, done, test.does)
		}
		if said := says(d, v1alpha1.ConditionAccessResourcesCreated); said != test.says {
			t.Errorf("%s: it says %q, want %q", sentence, said, test.says)
		}
	}
}
