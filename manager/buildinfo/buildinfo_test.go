package buildinfo

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestABinaryReportsWhatItWasBuiltFrom(t *testing.T) {
	stamp := Info{Version: "v1.2.3", Commit: "abc", Date: "2026-11-23T00:00:00Z"}
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: "def"}, {Key: "vcs.time", Value: "2026-01-01T00:00:00Z"}, {Key: "vcs.modified", Value: "true"}}
	ours := func(version string) debug.Module { return debug.Module{Path: library, Version: version} }
	operator := debug.Module{Path: library + "/operator", Version: "v1.2.2"}
	theirs := debug.Module{Path: "example.com/stamp", Version: "v9.0.0"}
	released, replaced := ours("v1.2.2"), ours("v1.2.2")
	replaced.Replace = &debug.Module{Path: "../admitkit"}
	forked := ours("v1.2.2")
	forked.Replace = &debug.Module{Path: "example.com/fork", Version: "v1.2.2-fork"}
	for name, c := range map[string]struct {
		recorded *debug.BuildInfo
		stamp    Info
		want     Info
	}{
		"a release has the linker's stamp":              {&debug.BuildInfo{Main: ours("v0.0.0-pseudo"), Settings: vcs}, stamp, Info{Version: "v1.2.3", Admitkit: "v1.2.3", Commit: "abc", Date: stamp.Date}},
		"go install has the module's version":           {&debug.BuildInfo{Main: ours("v1.2.2")}, Info{}, Info{Version: "v1.2.2", Admitkit: "v1.2.2"}},
		"a program of the operator has one version":     {&debug.BuildInfo{Main: operator, Deps: []*debug.Module{&released}}, stamp, Info{Version: "v1.2.3", Admitkit: "v1.2.3", Commit: "abc", Date: stamp.Date}},
		"go build in a changed clone has the commit":    {&debug.BuildInfo{Main: ours("(devel)"), Settings: vcs}, Info{}, Info{Version: "(devel)", Admitkit: "(devel)", Commit: "def-dirty", Date: "2026-01-01T00:00:00Z"}},
		"a user's program has its version and ours":     {&debug.BuildInfo{Main: theirs, Deps: []*debug.Module{&released}}, Info{}, Info{Version: "v9.0.0", Admitkit: "v1.2.2"}},
		"our stamp is not the version of their program": {&debug.BuildInfo{Main: theirs, Deps: []*debug.Module{&released}}, stamp, Info{Version: "v9.0.0", Admitkit: "v1.2.2"}},
		"a clone in the place of ours has no version":   {&debug.BuildInfo{Main: theirs, Deps: []*debug.Module{&replaced}}, Info{}, Info{Version: "v9.0.0", Admitkit: unknown}},
		"a fork in the place of ours has its version":   {&debug.BuildInfo{Main: theirs, Deps: []*debug.Module{&forked}}, Info{}, Info{Version: "v9.0.0", Admitkit: "v1.2.2-fork"}},
		"a binary without a record is unknown":          {nil, Info{}, Info{Version: unknown, Admitkit: unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.GoVersion, c.want.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
			if got := read(c.recorded, c.stamp); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestAnUnknownFormatIsRefusedWithThoseThatExist(t *testing.T) {
	err := Get().Write(&bytes.Buffer{}, "program", "yaml")
	if err == nil || !strings.Contains(err.Error(), `--output: unknown format "yaml": use json`) {
		t.Error(err)
	}
}

// The linker says nothing about a variable of -X that does not exist: the release would
// have no version.
func TestEveryBuildStampsVariablesThatExist(t *testing.T) {
	const root = "../.."
	if err := testkit.OpenSources(); err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`-X[ =](\S+?)=`)
	for file, want := range map[string]int{".goreleaser.yaml": 3, "Makefile": 1, "Dockerfile": 1} {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		stamped := map[string]string{}
		var flags []string
		for _, match := range variable.FindAllStringSubmatch(string(content), -1) {
			name := match[1][strings.LastIndex(match[1], ".")+1:]
			stamped[name] = "stamped-" + name
			flags = append(flags, "-X "+match[1]+"="+stamped[name])
		}
		if len(stamped) != want {
			t.Errorf("%s stamps %d variables, want %d: %v", file, len(stamped), want, stamped)
		}
		program := exec.CommandContext(t.Context(), "go", "run", "-ldflags", strings.Join(flags, " "), "./testdata/program")
		output, err := program.Output()
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := json.Unmarshal(output, &got); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		for name, value := range stamped {
			if got[name] != value {
				t.Errorf("%s stamps %s, and the program says %s=%q", file, name, name, got[name])
			}
		}
	}
}
