package command_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorded returns the line of a recorded admission of a Pod, by one of the webhooks of reviewed.
func recorded(mutates bool, name, answer string) string {
	return fmt.Sprintf(`{"time":"2026-01-02T03:04:05Z","build":"v1","webhook":{"name":"pods","mutates":%t,"mode":"Enforce","extensions":["extension.ValidatorFunc"]},`+
		`"request":{"uid":"1","name":%q,"namespace":"apps","operation":"CREATE","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},`+
		`"userInfo":{"username":"alice"},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q}}},"answer":%s,"tookMicros":100}`+"\n", mutates, name, name, answer)
}

// recordings returns a folder with these lines.
func recordings(t *testing.T, lines ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "some.jsonl"), []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

const (
	denied = `{"outcome":"denied","code":403,"reason":"Forbidden","message":"the label team is missing"}`
	signed = `{"outcome":"allowed","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","annotations":{"by":"alice"},"labels":{"seen":"yes"}}}}`
)

func TestReplay(t *testing.T) {
	for name, test := range map[string]struct {
		lines []string
		args  []string
		code  int
		want  []string // in stdout and stderr
	}{
		"nothing differs": {
			[]string{recorded(false, "web", denied), recorded(true, "web", signed)},
			nil, 0,
			[]string{"0 of 2 admissions differ", "validate/pods: p50 101µs, now "},
		},
		"the decision differs": {
			[]string{recorded(false, "web", `{"outcome":"allowed"}`)},
			nil, 1,
			[]string{"validate/pods: decision: allowed → denied: 1\n", "  CREATE Pod apps/web by alice at 2026-01-02T03:04:05Z\n    -allowed\n    +denied: 403 Forbidden: the label team is missing\n", "1 of 1 admissions differ; if they should, --update"},
		},
		"the reason differs, in more than the examples": {
			[]string{strings.Repeat(recorded(false, "web", strings.ReplaceAll(denied, "missing", "absent")), 5)},
			nil, 1,
			[]string{"validate/pods: reason: 5\n", "    -the label team is absent\n    +the label team is missing\n", "  ... and 2 more\n"},
		},
		"the code differs": {
			[]string{recorded(false, "web", strings.ReplaceAll(denied, "403", "422"))},
			nil, 1,
			[]string{"validate/pods: code: 422 Forbidden → 403 Forbidden: 1\n"},
		},
		"the effect of the patch differs": {
			[]string{recorded(true, "web", strings.ReplaceAll(signed, "yes", "no"))},
			nil, 1,
			[]string{"mutate/pods: effect: changed otherwise: 1\n", "-    seen: \"no\"\n", "+    seen: \"yes\"\n"},
		},
		"there was no effect": {
			[]string{recorded(true, "web", `{"outcome":"allowed"}`)}, nil, 1, []string{"mutate/pods: effect: unchanged → changed: 1\n", "+    seen: \"yes\"\n"},
		},
		"the warnings and audit annotations differ": {
			[]string{recorded(false, "web", strings.ReplaceAll(denied, `{"outcome"`, `{"warnings":["old"],"auditAnnotations":{"a":"b"},"outcome"`))},
			nil, 1,
			[]string{"validate/pods: warnings: 1\n", "    -old\n", "validate/pods: audit annotations: 1\n", "    -a=b\n"},
		},
		"a webhook is gone": {
			[]string{strings.NewReplacer(`"name":"pods"`, `"name":"old"`, "extension.ValidatorFunc", "old").Replace(recorded(false, "web", denied))},
			nil, 1,
			[]string{"validate/old: webhook: it no longer exists: 1\n"},
		},
		"a webhook has another name, and the same extensions": {
			[]string{strings.NewReplacer(`"name":"pods","mutates":false`, `"name":"old","mutates":false`).Replace(recorded(false, "web", denied))}, nil, 0, nil,
		},
		"a webhook is in another mode": {
			[]string{recorded(false, "web", denied)}, []string{"--mode=extension.ValidatorFunc=warn"}, 1, []string{"validate/pods: mode: Enforce → Warn: 1\n"},
		},
		"no decision was made in time": {
			[]string{recorded(false, "web", `{"outcome":"unfinished","code":504}`)}, nil, 0, []string{"1 had no decision in time, and are not compared"},
		},
		"a value was replaced": {
			[]string{strings.ReplaceAll(recorded(false, "web", `{"outcome":"allowed"}`), `"tookMicros"`, `"replaced":["request.object.spec.password","answer.message"],"tookMicros"`)},
			nil, 1,
			[]string{"this may be due to a value that was replaced: object.spec.password\n"},
		},
		"the last line is cut off": {
			[]string{recorded(false, "web", denied), recorded(false, "web", denied)[:200]},
			nil, 0,
			[]string{"skipped: ", "some.jsonl, line 2: the rest is missing: its process crashed, or still records", "0 of 1 admissions differ"},
		},
		"a line is corrupt": {
			[]string{"{nonsense}\n", recorded(false, "web", denied)}, nil, 0, []string{"some.jsonl, line 1: invalid character", "0 of 1 admissions differ"},
		},
		"everything is corrupt":  {[]string{"nonsense\n"}, nil, 2, []string{"some.jsonl, line 1: ", "no admission is recorded there: name a folder of --record"}},
		"an unknown output":      {nil, []string{"--output=xml"}, 2, []string{`--output: "xml": must be text or json`}},
		"a folder that is not":   {nil, []string{"/nowhere"}, 2, []string{"/nowhere"}},
		"a folder without files": {nil, []string{t.TempDir()}, 2, []string{"no admission is recorded there: name a folder of --record, with files *.jsonl.gz or *.jsonl"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, "", append([]string{"replay", recordings(t, test.lines...)}, test.args...)...)
			if code != test.code {
				t.Errorf("exit code %d: %s%s", code, stdout, stderr)
			}
			for _, want := range test.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("it does not say %q: %s%s", want, stdout, stderr)
				}
			}
		})
	}
	t.Run("without a folder", func(t *testing.T) {
		if _, stderr, code := run(t, "", "replay"); code != 2 || !strings.Contains(stderr, "name a folder of recordings") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
	t.Run("as JSON", func(t *testing.T) {
		stdout, _, code := run(t, "", "replay", "-o", "json", recordings(t, recorded(false, "web", `{"outcome":"allowed"}`)))
		var report struct {
			Reviews, Differing int
			Differences        []struct{ Kind string }
		}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 1 || report.Reviews != 1 || report.Differing != 1 || report.Differences[0].Kind != "decision" {
			t.Errorf("%v, exit code %d: %s", err, code, stdout)
		}
	})
}

func TestReplayUpdatesGoldens(t *testing.T) {
	gone := strings.NewReplacer(`"name":"pods"`, `"name":"old"`, "extension.ValidatorFunc", "old").Replace(recorded(false, "web", denied))
	same := recorded(false, "same", denied)
	dir := recordings(t, same, recorded(false, "web", `{"outcome":"allowed"}`), recorded(true, "web", `{"outcome":"allowed"}`), gone)
	if stdout, stderr, code := run(t, "", "replay", dir, "--update"); code != 0 || !strings.Contains(stdout, "3 recordings are updated") {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "some.jsonl"))
	if err != nil || !strings.HasPrefix(string(text), strings.Replace(same, `"mutates":false,`, "", 1)) || strings.Count(string(text), "\n") != 3 {
		t.Errorf("%v: the recordings are %s", err, text)
	}
	if stdout, _, code := run(t, "", "replay", dir); code != 0 || !strings.Contains(stdout, "0 of 3 admissions differ") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v: the folder has %v", err, files)
	}
}
