package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// update writes the files of rules anew: make generate sets it.
var update = flag.Bool("update", false, "write operator/charts/admitkit/files/rules")

// chartRules are the features of extensions: each has a file with the rules that
// its flags add to those of other flags, for a Role, and one for a ClusterRole, of the
// servers and of what reconciles. The chart's templates choose among them.
var chartRules = []struct{ feature, flags, without string }{
	{"access", "--access --audit=false", ""},
	{"access-egress", "--access --audit=false --access-network-policy=on", "--access --audit=false"},
	{"access-egress-cilium", "--access --audit=false --access-network-policy=on --access-cilium", "--access --audit=false --access-network-policy=on"},
	{"access-egress-auto", "--access --audit=false --access-network-policy=auto", "--access --audit=false --access-network-policy=on"},
	{"audit", "--audit-event=false", ""},
	{"audit-event", "--audit-event --audit-objects", "--audit-event=false --audit-objects"},
	{"audit-objects", "--audit-objects --audit-event=false", "--audit --audit-event=false"},
	{"audit-access", "--access --audit-event=false", "--access --audit=false|--audit --audit-event=false"},
	{"audit-enforcement", "--access --enforce", "--access"},
	{"audit-mark", "--mark-touched-pods", "--audit"},
	{"sessions", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1", ""},
	{"sessions-open", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-unrecorded=Open", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1"},
	{"sessions-evict", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-evict", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1"},
	{"sessions-end", "--access --sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b", "--access --audit=false|--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b"},
	{"sessions-nodes", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b --sessions-node-proxy=false"},
	{"sessions-api", "--sessions --sessions-image=x --audit-event=false --sessions-collectors=c:1 --sessions-api", "--audit-event=false|--sessions --sessions-image=x --audit=false --sessions-collectors=c:1"},
	{"audit-evict", "--evict-touched-pods-after=1h --audit-event=false", "--mark-touched-pods --audit-event=false"},
}

func TestTheRulesOfTheChartAreThoseOfTheExtensions(t *testing.T) {
	want := map[string][]rbacv1.PolicyRule{}
	for _, c := range chartRules {
		known := map[string][]rbacv1.PolicyRule{}
		for flags := range strings.SplitSeq(c.without, "|") {
			if flags != "" {
				for kind, rules := range rulesOf(t, flags) {
					known[kind] = append(known[kind], rules...)
				}
			}
		}
		for kind, rules := range rulesOf(t, c.flags) {
			rules = slices.DeleteFunc(rules, func(rule rbacv1.PolicyRule) bool {
				return slices.ContainsFunc(known[kind], func(k rbacv1.PolicyRule) bool { return k.String() == rule.String() })
			})
			if len(rules) > 0 {
				want[c.feature+"."+kind+".yaml"] = rules
			}
		}
	}
	for kind, rules := range rulesIn(t, hooksManifests(t, "--webhook-namespace=hooks-system", "--hooks-namespaces=apps")) {
		want["hooks."+kind+".yaml"] = rules
	}
	dir := filepath.Join(chartDir, "files/rules")
	for name, rules := range want {
		compareFile(t, filepath.Join(dir, name), rules)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if want[entry.Name()] == nil {
			t.Errorf("%s/%s: no extension needs these rules; remove it", dir, entry.Name())
		}
	}
}

// compareFile compares a file with rules, or writes it.
func compareFile(t *testing.T, path string, rules []rbacv1.PolicyRule) {
	t.Helper()
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte("# Written by make generate from what the extensions say that they need.\n"), text...)
	if *update {
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the extensions need other rules now; run make generate", path)
	}
}

// rulesOf returns what extensions need by `admitkit manifests` with flags, by process
// and kind of role.
func rulesOf(t *testing.T, flags string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	cmd := newOperator().cmd
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"manifests", "--image=x", "--replicas=1", "--namespace=apps", "--webhook-namespace=admitkit-system"}, strings.Fields(flags)...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%s: %v", flags, err)
	}
	return rulesIn(t, out.String())
}

// rulesIn returns what extensions need by manifests, by process and kind of role.
func rulesIn(t *testing.T, manifests string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for document := range strings.SplitSeq(manifests, "---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(role.Kind, "Role") && strings.HasSuffix(role.Name, "-extensions") {
			kind := strings.ToLower(role.Kind)
			if role.Namespace != "" && role.Namespace != "apps" {
				kind = role.Namespace // not where access is granted
			}
			if strings.HasSuffix(role.Name, "-reconciler-extensions") {
				kind = "reconciler." + kind
			}
			rules[kind] = append(rules[kind], role.Rules...)
		}
	}
	return rules
}
