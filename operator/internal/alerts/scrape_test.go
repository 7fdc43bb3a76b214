package alerts

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// scrape is what the programs of a scene said at a moment, by series.
type scrape struct {
	at     time.Time
	values map[string]string
}

// read scrapes a program.
func read(ctx context.Context, address string) (map[string]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", response.Status, err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		// The exposition format ends a series by its last space, as client_golang writes it.
		line = strings.TrimSpace(line)
		if at := strings.LastIndexByte(line, ' '); at > 0 && strings.HasPrefix(line, "admitkit_") {
			values[line[:at]] = line[at+1:]
		}
	}
	return values, nil
}

// What Prometheus would have: the first scrape stays for a while, as in a process that
// has run for long, and so does the last.
const (
	interval = 30 * time.Second
	before   = 60
	after    = 60
)

// input are series in the form of promtool's tests.
type input struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// series turns scrapes into what Prometheus would have if they were interval apart. The
// time of promtool begins at zero, so timestamps are moved by as much as the scrapes are.
func series(scrapes []scrape) []input {
	last := len(scrapes) - 1
	offset := float64(scrapes[last].at.UnixMicro())/1e6 - (time.Duration(before+last) * interval).Seconds()
	names := map[string]bool{}
	for _, s := range scrapes {
		for name := range s.values {
			names[name] = true
		}
	}
	var all []input
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var values []string
		known := false
		for i, s := range scrapes {
			text, present := s.values[name]
			repeat := map[int]int{0: before, last: after}[i]
			switch {
			case present:
				values = append(values, fmt.Sprintf("%sx%d", moved(name, text, offset), repeat))
			case known: // the process is gone
				values = append(values, "stale")
				if repeat > 0 {
					values = append(values, fmt.Sprintf("_x%d", repeat))
				}
			default:
				values = append(values, fmt.Sprintf("_x%d", repeat+1))
			}
			known = present
		}
		all = append(all, input{name, strings.Join(values, " ")})
	}
	return all
}

func moved(name, text string, offset float64) string {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(value, 0) || math.IsNaN(value) {
		return "_"
	}
	if strings.Contains(name, "_timestamp_seconds{") {
		value -= offset
	}
	return strconv.FormatFloat(value, 'f', -1, 64)
}

// promtoolTest is a file of promtool's tests.
type promtoolTest struct {
	RuleFiles          []string     `json:"rule_files"`
	EvaluationInterval string       `json:"evaluation_interval"`
	Tests              []evaluation `json:"tests"`
}

type evaluation struct {
	Interval    string   `json:"interval"`
	InputSeries []input  `json:"input_series"`
	Queries     []promQL `json:"promql_expr_test"`
}

type promQL struct {
	Expr       string   `json:"expr"`
	EvalTime   string   `json:"eval_time"`
	ExpSamples []sample `json:"exp_samples"`
}

type sample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// fires has promtool evaluate all rules on the scrapes. Of the alerts that match the
// pattern, those of want must fire, and no other. If quiet is set, none may fire before
// the second scrape, whether it matches or not.
func fires(t *testing.T, scrapes []scrape, quiet bool, pattern string, want ...string) {
	t.Helper()
	firing := func(pattern string, steps int) promQL {
		return promQL{
			Expr:     fmt.Sprintf(`count by (alertname) (max_over_time(ALERTS{alertstate="firing", alertname=~%q}[6h])) > bool 0`, pattern),
			EvalTime: (time.Duration(steps) * interval).String(),
		}
	}
	queries := []promQL{firing(pattern, before+len(scrapes)+after)}
	for _, alert := range want {
		queries[0].ExpSamples = append(queries[0].ExpSamples, sample{fmt.Sprintf("{alertname=%q}", alert), 1})
	}
	if quiet {
		queries = append(queries, firing(".*", before))
	}
	if err := evaluate(t, interval.String(), evaluation{interval.String(), series(scrapes), queries}); err != nil {
		t.Errorf("want %v to fire: %v", want, err)
	}
}

// evaluate has promtool evaluate all rules, and returns what is not as expected.
func evaluate(t *testing.T, every string, of evaluation) error {
	t.Helper()
	files, err := filepath.Glob(ruleFiles)
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: no rule files at %s", err, ruleFiles)
	}
	for i := range files {
		if files[i], err = filepath.Abs(files[i]); err != nil {
			t.Fatal(err)
		}
	}
	text, err := yaml.Marshal(promtoolTest{files, every, []evaluation{of}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), promtool(t), "test", "rules", file).CombinedOutput(); err != nil {
		return fmt.Errorf("promtool: %w: %.4000s", err, output)
	}
	return nil
}

// promtool finds the program that the alerts are tested with. Without it the test is
// skipped, but in CI, where hack/debian.sh gets it, that is a failure.
func promtool(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	path, err := filepath.Abs("../../../bin/tools/promtool")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		const remedy = "the alert rules are not tested without promtool: `hack/debian.sh prometheus promtool` puts it into bin/tools"
		if os.Getenv("CI") != "" {
			t.Fatal(remedy)
		}
		t.Skip(remedy)
	}
	return path
}
