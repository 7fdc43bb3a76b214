package binding_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/binding"
	"github.com/admitkit/admitkit/testing/fakes"
)

func host(namespace string) *fakes.Manager {
	mgr := fakes.NewManager()
	if namespace != "" {
		mgr.GetNamespacesReturns([]string{namespace})
	}
	mgr.GetWebhookNamespaceReturns("my-system")
	return mgr
}

func TestInvalidOptionsAreAnErrorThatNamesThem(t *testing.T) {
	role := []string{"shop/deployer"}
	for want, o := range map[string]binding.Options{
		"name each role that may be bound":              {},
		"BindableRoles: \"deployer\": write NAMESPACE":  {BindableRoles: []string{"deployer"}},
		"BindableRoles: \"shop/*\": a pattern":          {BindableRoles: []string{"shop/*"}},
		"\"my-system\" is the manager's own namespace":  {BindableRoles: []string{"my-system/a"}},
		"\"kube-system\" is a namespace of the control": {BindableRoles: []string{"kube-system/a"}},
		"BindableClusterRoles: \"*\": a pattern":        {BindableClusterRoles: []string{"*"}, Namespaces: []string{"shop"}},
		"Namespaces: required with":                     {BindableClusterRoles: []string{"view"}},
		"Namespaces: \"*\" is not the name":             {BindableClusterRoles: []string{"view"}, Namespaces: []string{"*"}},
		"Namespaces: they are those in which":           {BindableRoles: role, Namespaces: []string{"shop"}},
		"BindableClusterWide: \"\"":                     {BindableClusterWide: []string{""}},
		"MaxDuration: 1ms is less":                      {BindableRoles: role, MaxDuration: time.Millisecond},
		"MaxDuration: 9000h0m0s is more":                {BindableRoles: role, MaxDuration: 9000 * time.Hour},
		"Retention: -1s":                                {BindableRoles: role, Retention: -time.Second},
		"Workers: -1":                                   {BindableRoles: role, Workers: -1},
	} {
		if _, err := binding.New(o).Parts(host("")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// rights returns what the parts need: in a namespace, or in the cluster if that is "".
func rights(t *testing.T, o binding.Options, namespace string) (rules []rbacv1.PolicyRule) {
	t.Helper()
	parts, err := binding.New(o).Parts(host(""))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if entitled, ok := part.(extension.ClusterEntitled); ok && namespace == "" {
			rules = append(rules, entitled.ClusterRights()...)
		}
		if entitled, ok := part.(extension.NamespaceEntitled); ok && namespace != "" {
			rules = append(rules, entitled.NamespaceRights()[namespace]...)
		}
	}
	return rules
}

// binds returns what the rules let be bound, and fails the test if they name no role.
func binds(t *testing.T, rules []rbacv1.PolicyRule) (bound []string) {
	t.Helper()
	for _, rule := range rules {
		if slices.Contains(rule.Verbs, "*") || slices.Contains(rule.Verbs, "escalate") || slices.Contains(rule.Resources, "*") {
			t.Errorf("the rule is too wide: %v", rule)
		}
		if slices.Contains(rule.Verbs, "bind") {
			if len(rule.ResourceNames) == 0 || len(rule.Resources) != 1 {
				t.Errorf("the rule is for every role: %v", rule)
			}
			for _, name := range rule.ResourceNames {
				bound = append(bound, rule.Resources[0]+"/"+name)
			}
		}
	}
	return bound
}

func TestTheManagerMayBindExactlyWhatTheOperatorNames(t *testing.T) {
	o := binding.Options{BindableRoles: []string{"shop/deployer", "shop/deployer", "bank/teller"}}
	if got := binds(t, rights(t, o, "shop")); !slices.Equal(got, []string{"roles/deployer"}) {
		t.Errorf("in shop: %v", got)
	}
	if got := rights(t, o, ""); len(got) > 0 {
		t.Errorf("in the cluster: %v", got)
	}
	o.BindableClusterRoles, o.Namespaces = []string{"view", "edit"}, []string{"shop"}
	if got := binds(t, rights(t, o, "shop")); !slices.Equal(got, []string{"roles/deployer", "clusterroles/edit", "clusterroles/view"}) {
		t.Errorf("in shop: %v", got)
	}
	if got := binds(t, rights(t, o, "bank")); !slices.Equal(got, []string{"roles/teller"}) {
		t.Errorf("in bank: %v", got)
	}
	for _, rule := range rights(t, o, "") {
		if !slices.Equal(rule.Resources, []string{"clusterroles"}) || slices.Contains(rule.Verbs, "bind") || slices.Contains(rule.Verbs, "create") {
			t.Errorf("in the cluster, without anything to bind there: %v", rule)
		}
	}
	o.BindableClusterWide = []string{"node-reader"}
	if got := binds(t, rights(t, o, "")); !slices.Equal(got, []string{"clusterroles/node-reader"}) {
		t.Errorf("in the cluster: %v", got)
	}
}
