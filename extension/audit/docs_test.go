package audit_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var metricName = regexp.MustCompile(`admitkit_(audit|cloudevents)_[a-z_]+`)

func TestDashboardAlertsAndReferenceKnowTheMetrics(t *testing.T) {
	source := ""
	for _, dir := range []string{".", "../cloudevents"} {
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			source += string(text)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"../../docs/audit/dashboard.json", "../../docs/audit/alerts.yaml", "../../docs/metrics.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, name := range metricName.FindAllString(string(text), -1) {
			used[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
		}
		for name := range used {
			if !regexp.MustCompile(`"` + name + `"`).MatchString(source) {
				t.Errorf("%s has %s, which does not exist", path, name)
			}
		}
		for _, name := range metricName.FindAllString(source, -1) {
			if !used[name] && path != "../../docs/audit/alerts.yaml" {
				t.Errorf("%s does not have %s", path, name)
			}
		}
	}
}

func TestTheDashboardIsOneThatGrafanaReads(t *testing.T) {
	text, err := os.ReadFile("../../docs/audit/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title, UID string
		Panels     []struct {
			ID      int
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] || panel.Type == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %+v", panel)
		}
		ids[panel.ID] = true
	}
	if dashboard.Title == "" || dashboard.UID == "" || len(ids) == 0 {
		t.Errorf("the dashboard is %+v", dashboard)
	}
}

func TestTheAlertRulesHoldWhatTheyPromise(t *testing.T) {
	text, err := os.ReadFile("../../docs/audit/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules.Groups[0].Rules {
		if rule.Alert == "" || rule.Expr == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("rule %+v", rule)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool, which checks and tests the rules, is not on the PATH; `hack/debian.sh prometheus promtool` gets it:", err)
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", "../../docs/audit/alerts.yaml"},
		{"test", "rules", "../../docs/audit/alerts_test.yaml"},
	} {
		output, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %v: %v: %s", args, err, output)
		}
		t.Logf("%s", output)
	}
}
