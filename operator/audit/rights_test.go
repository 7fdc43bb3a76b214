package audit

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
)

func TestWhatIsAuditedInOneNamespaceNeedsNoRightsOnPodsOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		namespaces []string
		options    Options
		everywhere bool
	}{
		"recording":                     {[]string{"shop"}, Options{}, false},
		"enforcement":                   {[]string{"shop"}, Options{Enforcement: &Enforcement{}}, false},
		"recording everywhere":          {[]string{"shop"}, Options{NamespaceSelector: extension.EveryNamespace()}, true},
		"enforcement in two":            {[]string{"bar", "shop"}, Options{Enforcement: &Enforcement{}}, false},
		"recording everywhere, no name": {nil, Options{NamespaceSelector: extension.EveryNamespace()}, true},
	} {
		a, err := newAuditor(test.options, test.namespaces)
		if err != nil {
			t.Fatal(err)
		}
		onPods := func(rules []rbacv1.PolicyRule) bool {
			return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
		}
		if onPods(a.ClusterRights()) != test.everywhere || onPods(a.Rights()) == test.everywhere {
			t.Errorf("%s: everywhere %v, in the namespace %v", name, a.ClusterRights(), a.Rights())
		}
	}
}
