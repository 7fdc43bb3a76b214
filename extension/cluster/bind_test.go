package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/internal/testkit"
)

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

func mayBind(resource, name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{resource}, ResourceNames: []string{name}, Verbs: []string{"bind"}}
}

// entitle gives a group rights in a namespace, or in the cluster if that is "".
func entitle(t *testing.T, group, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	named := metav1.ObjectMeta{Name: group, Namespace: namespace}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}}
	if namespace == "" {
		testkit.Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: named, Rules: rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: roleRef("ClusterRole", group), Subjects: subjects})
		t.Cleanup(func() {
			_ = admin.Delete(context.Background(), &rbacv1.ClusterRoleBinding{ObjectMeta: named})
			_ = admin.Delete(context.Background(), &rbacv1.ClusterRole{ObjectMeta: named})
		})
		return
	}
	testkit.Create(t, admin, &rbacv1.Role{ObjectMeta: named, Rules: rules},
		&rbacv1.RoleBinding{ObjectMeta: named, RoleRef: roleRef("Role", group), Subjects: subjects})
}

func TestWhoMayBindIsWhoHoldsBindOnThatVeryRoleThere(t *testing.T) {
	here, elsewhere := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	pods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}
	testkit.Create(t, admin, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: here}, Rules: []rbacv1.PolicyRule{pods}})
	entitle(t, "binders", here, mayBind("roles", "reader"))
	entitle(t, "cluster-binders", "", mayBind("clusterroles", "view"))
	entitle(t, "view-binders", here, mayBind("clusterroles", "view"))
	entitle(t, "holders", here, pods)

	reader, view := roleRef("Role", "reader"), roleRef("ClusterRole", "view")
	tests := map[string]struct {
		group     string
		ref       rbacv1.RoleRef
		namespace string
		refused   string // "" if allowed
	}{
		"the right on the Role of the namespace":                          {"binders", reader, here, ""},
		"a right on a Role is not one on its namesake elsewhere":          {"binders", reader, elsewhere, "bind Role " + elsewhere + "/reader"},
		"a right on a Role is not one on another":                         {"binders", roleRef("Role", "writer"), here, "bind Role " + here + "/writer"},
		"a right on a Role is not one on a ClusterRole of its name":       {"binders", roleRef("ClusterRole", "reader"), here, "ClusterRole reader in namespace " + here},
		"the right on a ClusterRole in the namespace":                     {"view-binders", view, here, ""},
		"a right in a namespace is none in another":                       {"view-binders", view, elsewhere, "ClusterRole view in namespace " + elsewhere},
		"a right in a namespace is none in the cluster":                   {"view-binders", view, "", "ClusterRole view in the whole cluster"},
		"a right in the cluster is one in every namespace":                {"cluster-binders", view, here, ""},
		"the right in the cluster":                                        {"cluster-binders", view, "", ""},
		"to hold what is in the Role is not to bind it":                   {"holders", reader, here, "not the right to bind"},
		"a ClusterRoleBinding has no Role":                                {"binders", reader, "", "a ClusterRoleBinding refers to a ClusterRole"},
		"a reference without a name would be a question about every role": {"system:masters", roleRef("Role", ""), here, "roleRef.name: the name of the role is empty"},
		"a reference to no role":                                          {"system:masters", roleRef("Pod", "web"), here, "neither Role nor ClusterRole"},
		"a reference into another API group":                              {"system:masters", rbacv1.RoleRef{Kind: "Role", Name: "reader"}, here, "roleRef.apiGroup"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			user := authenticationv1.UserInfo{
				Username: "jane", UID: "1", Groups: []string{test.group}, Extra: map[string]authenticationv1.ExtraValue{"example.com/via": {"sso"}},
			}
			// RBAC sees a new binding a moment after it was made.
			testkit.Succeeds(t, time.Minute, "the answer", func(ctx context.Context) error {
				allowed, reason, err := cluster.MayBind(ctx, admin, user, test.ref, test.namespace)
				switch {
				case err != nil:
					return err
				case allowed != (test.refused == "") || !strings.Contains(reason, test.refused):
					return errors.New(reason)
				}
				return nil
			})
		})
	}
}

func TestARoleThatWasMadeAgainHasAnotherUID(t *testing.T) {
	ctx, namespace := t.Context(), testkit.Namespace(t, admin)
	ref := roleRef("Role", "reader")
	if _, err := cluster.RoleUID(ctx, admin, ref, namespace); !apierrors.IsNotFound(err) {
		t.Errorf("of none: got %v", err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: namespace}}
	testkit.Create(t, admin, role)
	first, err := cluster.RoleUID(ctx, admin, ref, namespace)
	if err != nil || first != role.UID {
		t.Errorf("got %q, %v, want %q", first, err, role.UID)
	}
	if err := admin.Delete(ctx, role); err != nil {
		t.Fatal(err)
	}
	testkit.Create(t, admin, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: namespace}})
	if again, err := cluster.RoleUID(ctx, admin, ref, namespace); err != nil || again == first {
		t.Errorf("of the second: got %q, %v", again, err)
	}
	if uid, err := cluster.RoleUID(ctx, admin, roleRef("ClusterRole", "view"), namespace); err != nil || uid == "" {
		t.Errorf("of a ClusterRole: got %q, %v", uid, err)
	}
	if _, err := cluster.RoleUID(ctx, admin, ref, ""); err == nil {
		t.Error("a Role without a namespace was found")
	}
}

func TestARoleThatMayBeBoundIsNamedExactly(t *testing.T) {
	if role, err := cluster.ParseRole("shop/system:deployer"); err != nil || role.Namespace != "shop" || role.Name != "system:deployer" {
		t.Errorf("got %v, %v", role, err)
	}
	for text, want := range map[string]string{
		"deployer": "NAMESPACE/NAME", "/deployer": "the namespace", "Shop/deployer": "the namespace", "shop/": "is empty", "shop/*": "pattern",
		"shop/a/b": "may not contain", "*/deployer": "the namespace", "shop/..": "may not be", "shop/ a": "space", "shop/" + strings.Repeat("a", 254): "253",
	} {
		if _, err := cluster.ParseRole(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if err := cluster.CheckClusterRole("cluster-admin"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "*", "a/b", "view*"} {
		if cluster.CheckClusterRole(name) == nil {
			t.Errorf("%q was taken", name)
		}
	}
}
