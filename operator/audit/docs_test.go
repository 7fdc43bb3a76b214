package audit_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	dashboard = "../charts/admitkit/files/dashboards/audit.json"
	alerts    = "../charts/admitkit/files/alerts/audit.yaml"
)

// read returns the text of a file, "" for none.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && path != "" {
		t.Fatal(err)
	}
	return string(text)
}

var metricName = regexp.MustCompile(`admitkit_(audit|cloudevents)_[a-z_]+`)

func TestDashboardAlertsAndReferenceKnowTheMetrics(t *testing.T) {
	source := ""
	for _, dir := range []string{".", "../../extension/deliver"} {
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
	for path, also := range map[string]string{dashboard: "", alerts: "", "../docs/metrics.md": "../../docs/metrics.md"} {
		used := map[string]bool{}
		for _, name := range metricName.FindAllString(read(t, path)+read(t, also), -1) {
			used[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
		}
		for name := range used {
			if !regexp.MustCompile(`"` + name + `"`).MatchString(source) {
				t.Errorf("%s has %s, which does not exist", path, name)
			}
		}
		for _, name := range metricName.FindAllString(source, -1) {
			if !used[name] && path != alerts {
				t.Errorf("%s does not have %s", path, name)
			}
		}
	}
}
