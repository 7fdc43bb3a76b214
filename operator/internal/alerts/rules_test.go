package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	ruleFiles      = "../../charts/admitkit/files/alerts/*.yaml"
	dashboardFiles = "../../charts/admitkit/files/dashboards/*.json"
)

// runbooks are the pages that say what to do, by their place in the repository: of every program, and of the extensions that ship.
var runbooks = []string{"docs/operations.md", "operator/docs/operations.md"}

// rule is an alert.
type rule struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations map[string]string
}

// rules returns the alerts of all files.
func rules(t *testing.T) []rule {
	t.Helper()
	files, err := filepath.Glob(ruleFiles)
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: no rule files at %s", err, ruleFiles)
	}
	var all []rule
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var content struct{ Groups []struct{ Rules []rule } }
		if err := yaml.UnmarshalStrict(text, &content); err != nil && !strings.Contains(err.Error(), "unknown field") {
			t.Fatalf("%s: %v", file, err)
		}
		for _, group := range content.Groups {
			all = append(all, group.Rules...)
		}
	}
	return all
}

// Two weeks are too long for a scene.
func TestTheAlertsOfModes(t *testing.T) {
	const labels = `{extension="e", webhook="observe/validate/w", operation="CREATE"}`
	for name, test := range map[string]struct {
		mode, denies, read, uses, until string
		fires                           []string
	}{
		"nothing is found":    {"Observe", "0x800", "1x800", "0+1x800", "1e10x800", []string{"ExtensionFindsNothing"}},
		"in force":            {"Enforce", "0x800", "1x800", "0+1x800", "1e10x800", nil},
		"found once":          {"Warn", "0x500 1x300", "1x800", "0+1x800", "1e10x800", nil},
		"found before":        {"Warn", "0x20 5x780", "1x800", "0+1x800", "1e10x800", []string{"ExtensionFindsNothing"}},
		"a wrong file":        {"Enforce", "0x800", "1x790 0x10", "0+1x800", "1e10x800", []string{"FileNotRead"}},
		"an unused exemption": {"Enforce", "0x800", "1x800", "0x20 5x780", "1e10x800", []string{"ExemptionUnused"}},
		"an exemption's end":  {"Enforce", "0x800", "1x800", "0+1x800", "1000x800", []string{"ExemptionEnded"}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []sample
			for _, alert := range test.fires {
				want = append(want, sample{fmt.Sprintf("{alertname=%q}", alert), 1})
			}
			if err := evaluate(t, "1h", evaluation{"1h", []input{
				{`admitkit_extension_mode{extension="e", mode="` + test.mode + `"}`, "1x800"},
				{`admitkit_file_read{file="modes"}`, test.read},
				{"admitkit_would_deny_total" + labels, test.denies},
				{"admitkit_would_change_total" + labels, "0x800"},
				{`admitkit_exemption_uses_total{exemption="x", extension="e"}`, test.uses},
				{`admitkit_exemption_until_timestamp_seconds{exemption="x"}`, test.until},
			}, []promQL{{`count by (alertname) (ALERTS{alertstate="firing"})`, "800h", want}}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEveryAlertHasACase(t *testing.T) {
	cases := map[string]bool{}
	for _, s := range scenes {
		for _, alert := range s.fires {
			cases[alert] = true
		}
	}
	for _, r := range rules(t) {
		if !cases[r.Alert] && !slices.Contains([]string{"ExtensionFindsNothing", "FileNotRead", "ExemptionEnded", "ExemptionUnused"}, r.Alert) { // TestTheAlertsOfModes
			t.Errorf("no scene makes %s fire: add one", r.Alert)
		}
		delete(cases, r.Alert)
	}
	for alert := range cases {
		t.Errorf("a scene wants %s to fire, which is no alert", alert)
	}
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	says := map[string]string{}
	for _, runbook := range runbooks {
		page, err := os.ReadFile("../../../" + runbook)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(string(page), -1) {
			says[section[1]] = runbook
		}
	}
	for _, r := range rules(t) {
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("%s needs a summary, a description and a severity: %+v", r.Alert, r)
		}
		if says[r.Alert] == "" {
			t.Errorf("%q have no section %s", runbooks, r.Alert)
		}
		if want := "https://github.com/admitkit/admitkit/blob/main/" + says[r.Alert] + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("the runbook_url of %s is %q, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
	}
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	files, err := filepath.Glob(ruleFiles)
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), promtool(t), append([]string{"check", "rules", "--lint-fatal"}, files...)...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

// What a dashboard asks is taken for the rule of a recording, with Grafana's variable replaced.
func TestPromtoolAcceptsWhatTheDashboardsAsk(t *testing.T) {
	type recording struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var asked []recording
	for _, d := range dashboards(t) {
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				asked = append(asked, recording{fmt.Sprintf("asked:%d", len(asked)), strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")})
			}
		}
	}
	text, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboards", "rules": asked}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "asked.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), promtool(t), "check", "rules", "--lint-fatal", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

var metricName = regexp.MustCompile(`admitkit_[a-z_]+`)

// TestRulesAndDashboardsKnowTheMetrics compares them with the pages that are made from the code.
func TestRulesAndDashboardsKnowTheMetrics(t *testing.T) {
	known := map[string]bool{}
	for _, path := range []string{"../../docs/metrics.md", "../../../docs/metrics.md"} {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)`").FindAllStringSubmatch(string(page), -1)
		if len(rows) == 0 {
			t.Fatalf("%s has no metrics", path)
		}
		for _, row := range rows {
			known[row[1]] = true
		}
	}
	check := func(where, expr string) {
		for _, name := range metricName.FindAllString(expr, -1) {
			name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !known[name] {
				t.Errorf("%s has %s, which is no metric", where, name)
			}
		}
	}
	for _, r := range rules(t) {
		check(r.Alert, r.Expr)
	}
	for _, d := range dashboards(t) {
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				check(d.UID, target.Expr)
			}
		}
	}
}

// dashboard is what the test reads of a Grafana dashboard.
type dashboard struct {
	Title, UID string
	Panels     []struct {
		ID      int
		Type    string
		Targets []struct{ Expr string }
	}
}

func dashboards(t *testing.T) []dashboard {
	t.Helper()
	files, err := filepath.Glob(dashboardFiles)
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: no dashboards at %s", err, dashboardFiles)
	}
	all := make([]dashboard, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &all[i]); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return all
}

func TestDashboardsAreSuchThatGrafanaReadsThem(t *testing.T) {
	uids := map[string]bool{}
	for _, d := range dashboards(t) {
		ids := map[int]bool{}
		for _, panel := range d.Panels {
			if ids[panel.ID] || panel.Type == "" || len(panel.Targets) == 0 {
				t.Errorf("%s: panel %+v", d.UID, panel)
			}
			ids[panel.ID] = true
		}
		if d.Title == "" || d.UID == "" || uids[d.UID] || len(ids) == 0 {
			t.Errorf("the dashboard is %+v", d)
		}
		uids[d.UID] = true
	}
}
