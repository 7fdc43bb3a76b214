package rules

import (
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestOnlyRolesThatAreNamedCanBeGranted(t *testing.T) {
	here, all := Namespaces{named: []string{"apps", "shop"}}, Namespaces{own: "admitkit-system", excluded: []string{"calico-system"}}
	for sentence, test := range map[string]struct {
		places              Namespaces
		roles, clusterRoles []string
		want                string
	}{
		"a Role and a ClusterRole":                {here, []string{"shop/deployer"}, []string{"system:view"}, ""},
		"a Role in any namespace":                 {all, []string{"other/deployer"}, nil, ""},
		"a Role without a namespace":              {here, []string{"deployer"}, nil, `Roles: "deployer": write NAMESPACE/NAME`},
		"a Role where no access is granted":       {here, []string{"other/deployer"}, nil, "no access is granted in namespace other: add it to Namespaces"},
		"a Role of the control plane":             {all, []string{"kube-system/deployer"}, nil, "no access is granted in namespace kube-system"},
		"a Role of the manager's own":             {all, []string{"admitkit-system/deployer"}, nil, "no access is granted in namespace admitkit-system"},
		"a Role where webhooks are excluded":      {all, []string{"calico-system/deployer"}, nil, "no access is granted in namespace calico-system"},
		"a pattern":                               {here, nil, []string{"*"}, "a pattern is not a role's name"},
		"a name that is none":                     {here, []string{"shop/"}, nil, "the name of the role is empty"},
		"more than what fits into a Role's rules": {here, nil, make([]string, 1001), "1001 roles, of at most 1000"},
	} {
		if _, err := NewRoles(test.roles, test.clusterRoles, test.places); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", sentence, err, test.want)
		}
	}
	if refused := all.Closed("calico-system"); refused == nil || !strings.Contains(refused.Message, "which --exclude-namespaces excludes from the webhooks") {
		t.Errorf("where webhooks are excluded, access is closed: %v", refused)
	}
	g, err := NewRoles([]string{"shop/deployer", "shop/deployer", "apps/reader"}, []string{"view"}, here)
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
		refused := g.Refuses(test.namespace, test.ref)
		if (refused != nil) != (test.want != "") || refused != nil && !strings.Contains(refused.Message, test.want) {
			t.Errorf("%s: %v, want %q", sentence, refused, test.want)
		}
	}
}
