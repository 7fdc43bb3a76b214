package command_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// reader is a Mutator that reads ConfigMaps.
type reader struct{}

func (reader) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (reader) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}
}

// cached is a Mutator that reads ConfigMaps by the cache.
type cached struct{}

func (cached) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (cached) Reads() []client.Object { return []client.Object{&corev1.ConfigMap{}} }

// decided is a reader that says where it needs rights.
type decided struct{ reader }

func (decided) ClusterRights() []rbacv1.PolicyRule { return reader{}.Rights() }

// group is a Composite that reads ConfigMaps for its parts.
type group struct {
	selector *metav1.LabelSelector
}

func (g group) Parts(extension.Manager) ([]any, error) {
	return []any{extension.MutatingFunc(stamp, extension.Scope{NamespaceSelector: g.selector})}, nil
}

func (group) Rights() []rbacv1.PolicyRule { return reader{}.Rights() }

func TestRightsFollowTheScopeIfItNamesItsNamespaces(t *testing.T) {
	byName := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "shop"}}
	byNames := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{"shop", "store"}},
		{Key: "team", Operator: metav1.LabelSelectorOpExists},
	}}
	byWatched := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "apps"}}
	byLabel := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	scoped := func(r extension.Mutator[*corev1.Pod], selector *metav1.LabelSelector) any {
		return extension.Mutating(r, extension.Scope{NamespaceSelector: selector})
	}
	for name, test := range map[string]struct {
		extension any
		watched   string
		want      string // where the Roles are, * for a ClusterRole
		warns     string
	}{
		"the watched namespace, without a selector":              {scoped(reader{}, nil), "apps", "apps", ""},
		"everywhere, if everything is watched":                   {scoped(reader{}, nil), "", "*", ""},
		"the only one that it names":                             {scoped(reader{}, byName), "apps", "shop", ""},
		"each that it names":                                     {scoped(reader{}, byNames), "apps", "shop store", ""},
		"those that it names, although everything is watched":    {scoped(reader{}, byName), "", "shop", ""},
		"the watched one, if it selects others by labels":        {scoped(reader{}, byLabel), "apps", "apps", "command_test.reader gets admissions from the namespaces of its own NamespaceSelector (team=a)"},
		"the watched one, if it selects all":                     {scoped(reader{}, extension.EveryNamespace()), "apps", "apps", "ClusterRights"},
		"everywhere, if it selects by labels and all is watched": {scoped(reader{}, byLabel), "", "*", ""},
		"where it says, whatever it selects":                     {scoped(decided{}, byLabel), "apps", "* apps", ""},
		"each that is watched, without a selector":               {scoped(reader{}, nil), "store,apps", "apps store", ""},
		"each that is watched, if it is read by the cache":       {scoped(cached{}, extension.InNamespaces("apps", "store")), "store,apps", "apps store", ""},
		"those that it names, although others are watched":       {scoped(reader{}, extension.InNamespaces("shop", "apps")), "store,apps", "apps shop", ""},
		"each that is watched, if it names others for the cache": {scoped(cached{}, extension.InNamespaces("apps", "shop")), "store,apps", "apps store", `a cache that holds only ["apps" "store"], the watched namespaces`},
		"the watched one, if it is read by the cache":            {scoped(cached{}, byLabel), "apps", "apps", "command_test.cached gets admissions from the namespaces of its own NamespaceSelector (team=a), but reads ConfigMap"},
		"the watched one, if its scope names that":               {scoped(cached{}, byWatched), "apps", "apps", ""},
		"the watched one, for a Composite, whatever its parts":   {group{byName}, "apps", "apps", "command_test.group"},
	} {
		t.Run(name, func(t *testing.T) {
			build := func(mgr *manager.Manager) error { return mgr.AddExtension(test.extension) }
			stdout, stderr, code := runBuilt(t, build, "", "manifests", "--image=x", "--service-name=stamp", "--namespace="+test.watched, "--webhook-namespace=my-system")
			if code != 0 {
				t.Fatal(stderr)
			}
			if got := strings.Join(rolesOfReader(t, stdout), " "); got != test.want {
				t.Errorf("the rights hold in %s, want %s", got, test.want)
			}
			if test.warns == "" && (stderr != "" || strings.Contains(stdout, "WARNING")) {
				t.Errorf("there is a warning: %s", stderr)
			}
			if test.warns != "" && !strings.HasPrefix(stderr, "warning: extension") || !strings.Contains(stderr, test.warns) {
				t.Errorf("got %q, want a warning that says %q", stderr, test.warns)
			}
			if test.warns != "" && !strings.HasPrefix(stdout, "# WARNING: extension command_test.") {
				t.Errorf("the warning is not in the output:\n%s", stdout)
			}
		})
	}
}

// rolesOfReader returns where ConfigMaps may be read, * for everywhere.
func rolesOfReader(t *testing.T, text string) []string {
	t.Helper()
	places := map[string]bool{}
	for document := range strings.SplitSeq(text, "---\n") {
		var role rbacv1.Role
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		reads := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "configmaps") && slices.Contains(r.Verbs, "get")
		})
		switch {
		case reads && role.Kind == "ClusterRole":
			places["*"] = true
		case reads:
			places[role.Namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(places))
}

func TestManifestsOfAScopeThatNoRequestMatchesAreNotPrinted(t *testing.T) {
	judge := func(scope extension.Scope) command.Build {
		return func(mgr *manager.Manager) error {
			return mgr.AddExtension(extension.ValidatingFunc(func(context.Context, *metav1.PartialObjectMetadata, *extension.Request) error { return nil }, scope))
		}
	}
	for name, test := range map[string]struct {
		scope extension.Scope
		own   string
		want  string
	}{
		"a match condition that does not compile": {
			extension.Scope{Name: "judge", MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "typo", Expression: "request.nme == 'a'"}}},
			"",
			"the scope of webhook judge: MatchConditions[0]",
		},
		"a resource that Kubernetes does not have": {
			extension.Scope{Name: "judge", Rules: extension.Resources("apps", "v1", []string{"deployment"}, admissionregistrationv1.Create)},
			"",
			"Rules[0]: Kubernetes has no resource deployment.apps, but deployments.apps",
		},
		"a plural that is not the one of the author's own kind": {
			extension.Scope{Name: "judge", Rules: extension.Resources("example.com", "v1", []string{"chassises"}, admissionregistrationv1.Create)},
			chassisCRD,
			"its CustomResourceDefinition says chassis",
		},
		"a selector that selects nothing": {
			extension.Scope{Name: "judge", ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpDoesNotExist}}}},
			"",
			"ObjectSelector: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"manifests", "--image=x", "--namespace=apps", "--webhook-namespace=my-system"}
			if test.own != "" {
				args = append(args, "--with=-")
			}
			if stdout, stderr, code := runBuilt(t, judge(test.scope), test.own, args...); code != 2 || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d: %q, want %q\n%s", code, stderr, test.want, stdout)
			}
		})
	}
}

// asking is a Mutator that asks for a right.
type asking struct{ rule rbacv1.PolicyRule }

func (asking) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (a asking) Rights() []rbacv1.PolicyRule { return []rbacv1.PolicyRule{a.rule} }

// askingIn asks in a namespace.
type askingIn struct{ namespace string }

func (askingIn) Mutate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (a askingIn) NamespaceRights() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{a.namespace: {{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}}}
}

func TestRightsThatGrantNothingAreNotPrinted(t *testing.T) {
	for name, test := range map[string]struct {
		group, resource, verb string
		want                  string
	}{
		"a singular":                 {"", "configmap", "get", `Kubernetes has no resource configmap, but configmaps`},
		"a resource in no group":     {"", "deployments", "get", `Kubernetes has no resource deployments, but deployments.apps`},
		"a version for a group":      {"apps/v1", "deployments", "get", `APIGroups: "apps/v1": must be a group without a version, "apps"`},
		"the core group by a name":   {"v1", "configmaps", "get", `APIGroups: "v1": the core group is ""`},
		"a verb of nobody":           {"", "configmaps", "read", `Verbs: "read": is get, list or watch`},
		"a method of HTTP":           {"", "configmaps", "GET", `Verbs: "GET": verbs are in lower case`},
		"what has no namespace":      {"", "nodes", "get", `nodes have no namespace, and Rights grant only what is in one: ask by ClusterRights`},
		"a role to bind":             {"rbac.authorization.k8s.io", "clusterroles", "bind", ""},
		"the namespace itself":       {"", "namespaces", "get", ""},
		"a subresource":              {"", "pods/exec", "create", ""},
		"a kind of one's own":        {"example.com", "gadget", "frobnicate", ""},
		"what may be impersonated":   {"", "users", "impersonate", ""},
		"a resource of a newer kube": {"apps", "brandnewsets", "get", ""},
	} {
		t.Run(name, func(t *testing.T) {
			build := func(mgr *manager.Manager) error {
				return mgr.AddExtension(extension.Mutating(asking{rbacv1.PolicyRule{APIGroups: []string{test.group}, Resources: []string{test.resource}, Verbs: []string{test.verb}}}, extension.Scope{}))
			}
			_, stderr, code := runBuilt(t, build, "", "manifests", "--image=x", "--namespace=apps", "--webhook-namespace=own")
			if test.want == "" && code != 0 || test.want != "" && (code != 2 || !strings.Contains(stderr, "command_test.asking: Rights()[0]: "+test.want)) {
				t.Errorf("exit code %d, want %q: %s", code, test.want, stderr)
			}
		})
	}
	for name, test := range map[string]struct {
		part extension.Mutator[*corev1.Pod]
		want string
	}{
		"no group":         {asking{rbacv1.PolicyRule{Resources: []string{"pods"}, Verbs: []string{"get"}}}, `needs APIGroups ("" is the core group), Resources and Verbs`},
		"a path in a Role": {asking{rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}, "Rights()[0]: NonResourceURLs: no Role grants /metrics: ask by ClusterRights"},
		"no namespace":     {askingIn{namespace: ""}, `command_test.askingIn: NamespaceRights(): "" is no name of a namespace`},
		"an upper case":    {askingIn{namespace: "Shop"}, `NamespaceRights(): "Shop" is no name of a namespace`},
	} {
		build := func(mgr *manager.Manager) error {
			return mgr.AddExtension(extension.Mutating(test.part, extension.Scope{}))
		}
		if _, stderr, code := runBuilt(t, build, "", "manifests", "--image=x", "--namespace=apps", "--webhook-namespace=own"); code != 2 || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: exit code %d, want %q: %s", name, code, test.want, stderr)
		}
	}
}
