package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// update writes the files of rules anew: make generate sets it.
var update = flag.Bool("update", false, "write operator/charts/admitkit/files/rules")

// chartRules are the features of extensions: each has a file with the rules that
// its flags add to those of other flags, for a Role, and one for a ClusterRole, of the
// servers, of what reconciles and of what scans, unless only names one of these. The chart's
// templates choose among them.
var chartRules = []struct{ feature, flags, without, only string }{
	{"access", "--access --audit=false", "", ""},
	{"access-egress", "--access --audit=false --access-network-policy=on", "--access --audit=false", ""},
	{"access-egress-cilium", "--access --audit=false --access-network-policy=on --access-cilium", "--access --audit=false --access-network-policy=on", ""},
	{"access-egress-auto", "--access --audit=false --access-network-policy=auto", "--access --audit=false --access-network-policy=on", ""},
	{"audit", "--audit-event=false", "", ""},
	{"audit-event", "--audit-event --audit-objects", "--audit-event=false --audit-objects", ""},
	{"audit-objects", "--audit-objects --audit-event=false", "--audit --audit-event=false", ""},
	{"audit-access", "--access --audit-event=false", "--access --audit=false|--audit --audit-event=false", ""},
	{"audit-enforcement", "--access --enforce --enforce-namespaces=apps", "--access", ""},
	{"audit-enforcement-label", "--access --enforce", "--access --enforce --enforce-namespaces=apps", ""},
	{"binding", "--audit=false --bindable-role=apps/a", "", "scanner.clusterrole"},
	{"scan-reports", "--audit-event=false --scan-reports", "--audit-event=false", ""},
	{"audit-mark", "--mark-touched-pods", "--audit", ""},
	{"sessions", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1", "", ""},
	{"sessions-open", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-unrecorded=Open", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1", ""},
	{"sessions-evict", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-evict", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1", ""},
	{"sessions-end", "--access --sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b", "--access --audit=false|--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b", ""},
	{"sessions-selector", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1", "scanner.clusterrole"},
	{"sessions-nodes", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b", "--sessions --sessions-image=x --audit=false --sessions-collectors=c:1 --sessions-selector=a=b --sessions-node-proxy=false", ""},
	{"sessions-api", "--sessions --sessions-image=x --audit-event=false --sessions-collectors=c:1 --sessions-api", "--audit-event=false|--sessions --sessions-image=x --audit=false --sessions-collectors=c:1", ""},
	{"audit-evict", "--evict-touched-pods-after=1h --audit-event=false", "--mark-touched-pods --audit-event=false", ""},
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
			if len(rules) > 0 && (c.only == "" || c.only == kind) {
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

// setting is a flag as the chart's values have it.
type setting struct {
	Flag    string `json:"flag"`
	Value   string `json:"value"`
	Default any    `json:"default"`
	// Needs are the values without which this one has no effect.
	Needs []string `json:"needs,omitempty"`
	// Repeats is whether each element is a flag: a variable has one value.
	Repeats bool `json:"repeats,omitempty"`
}

// switches are the names of values that enable those beside them, and below them.
var switches = []string{"enabled", "url", "endpoint", "networkPolicy"}

// at returns a value of the chart, and those that enable it.
func at(values map[string]any, path string) (value any, needs []string) {
	elements := strings.Split(path, ".")
	for i, element := range elements {
		for _, name := range switches {
			by := strings.Join(append(slices.Clone(elements[:i]), name), ".")
			if _, found := values[name]; found && i > 0 && by != path {
				needs = append(needs, by)
			}
		}
		value = values[element]
		values, _ = value.(map[string]any)
	}
	return value, needs
}

func TestTheSettingsOfTheChartAreTheFlagsOfTheExtensions(t *testing.T) {
	values := chartValues(t)
	o := newOperator()
	flags := o.cmd.PersistentFlags()
	var settings []setting
	for _, p := range o.parts {
		for _, flag := range slices.Sorted(maps.Keys(p.values)) {
			f := flags.Lookup(flag)
			if f == nil {
				t.Fatalf("there is no flag --%s", flag)
			}
			s := setting{Flag: flag, Value: p.values[flag], Repeats: f.Value.Type() == "stringArray"}
			value, needs := at(values, s.Value)
			if needs = append(needs, p.enabled); p.enabled == "" || p.enabled == s.Value || slices.Contains(needs[:len(needs)-1], p.enabled) {
				needs = needs[:len(needs)-1]
			}
			s.Needs = needs
			before := f.Value.String()
			switch list, listed := value.([]any); {
			case listed && len(list) == 0:
				s.Default = []any{}
			case value == nil: // the chart leaves it to the program
				s.Default = ""
			default:
				s.Default = value
				if number, is := value.(float64); is {
					value = strconv.FormatFloat(number, 'f', -1, 64)
				}
				if text := fmt.Sprint(value); text != "" && text != "map[]" {
					if err := f.Value.Set(text); err != nil {
						t.Errorf("%s: %v", s.Value, err)
					}
				}
			}
			if after := f.Value.String(); after != before {
				t.Errorf("%s: the chart's default is %s, that of --%s %s", s.Value, after, flag, before)
			}
			settings = append(settings, s)
		}
	}
	compareFile(t, filepath.Join(chartDir, "files/settings.yaml"), settings)
	if drain := fmt.Sprintf("%vs", values["drainPeriodSeconds"]); drain != flags.Lookup("drain-period").DefValue {
		t.Errorf("drainPeriodSeconds: %s is not the default of --drain-period", drain)
	}
}

// chartValues returns the values of the chart.
func chartValues(t *testing.T) (values map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// compareFile compares a file with what the extensions say, or writes it.
func compareFile(t *testing.T, path string, content any) {
	t.Helper()
	text, err := yaml.Marshal(content)
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
		t.Errorf("%s: the extensions say otherwise now; run make generate", path)
	}
}

// rulesOf returns what extensions need by `admitkit manifests` with flags, by process
// and kind of role.
func rulesOf(t *testing.T, flags string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	cmd := newOperator().cmd
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"manifests", "--image=x", "--replicas=1", "--namespace=apps", "--webhook-namespace=admitkit-system", "--scan-every=1h"}, strings.Fields(flags)...))
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
			for _, process := range []string{"reconciler", "scanner"} {
				if strings.HasSuffix(role.Name, "-"+process+"-extensions") {
					kind = process + "." + kind
				}
			}
			rules[kind] = append(rules[kind], role.Rules...)
		}
	}
	return rules
}
