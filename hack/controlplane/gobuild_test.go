package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module writes a module of two packages, of which the command imports the other.
func module(t *testing.T, command string) goBuild {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":     "module example.com/tool\n\ngo 1.26\n",
		"main.go":    command,
		"lib/lib.go": "package lib\n\n// Name is " + dir + ", so that no build cache has it.\nconst Name = \"" + dir + "\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return goBuild{
		name: "tool", dir: dir, pkg: ".", log: filepath.Join(dir, downloads),
		env: append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=", "BUILT="+filepath.Join(dir, "built")),
	}
}

const toolSource = "package main\n\nimport \"example.com/tool/lib\"\n\nfunc main() { println(lib.Name) }\n"

func TestWhatIsLeftToCompileIsKnownBeforeAndNothingAfterwards(t *testing.T) {
	g := module(t, toolSource)
	stale, err := g.stale(t.Context())
	if err != nil || !slices.Contains(stale, "example.com/tool/lib") || stale[len(stale)-1] != "example.com/tool" {
		t.Fatalf("left to compile: %q, %v", stale, err)
	}
	if err := g.run(t.Context(), `sh -c 'cp "$0" "$BUILT"'`, ""); err != nil {
		t.Fatal(err)
	}
	if !executable(filepath.Join(g.dir, "built")) {
		t.Error("nothing was built")
	}
	if stale, err = g.stale(t.Context()); err != nil || !slices.Equal(stale, []string{"example.com/tool"}) {
		t.Errorf("left to compile after the build: %q, %v", stale, err)
	}
}

func TestABuildThatCannotBeginSaysWhy(t *testing.T) {
	g := module(t, toolSource)
	g.pkg = "./absent"
	if err := g.run(t.Context(), "true", ""); err == nil || !strings.Contains(err.Error(), "absent: directory not found") {
		t.Errorf("got: %v", err)
	}
}

func TestProgressNamesWhatIsCompiledAndHowMuchIsLeft(t *testing.T) {
	var stderr bytes.Buffer
	p := newProgress("kwok", []string{"a", "b/c", "main"}, &stderr)
	for _, step := range []struct{ written, state, stderr string }{
		{"", "2 of 2 packages are left to compile, now a (0s)", ""},
		{"a\nb/", "1 of 2 packages are left to compile, now a (0s)", ""},
		{"c\n# b/c\nc.go:1: a mistake\n", "linking (0s)", "# b/c\nc.go:1: a mistake\n"},
		{"main\n", "linking (0s)", ""},
	} {
		stderr.Reset()
		if _, err := p.Write([]byte(step.written)); err != nil {
			t.Fatal(err)
		}
		if got, want := p.state(), "kwok: "+step.state; got != want || stderr.String() != step.stderr {
			t.Errorf("after %q: %q and %q, want %q and %q", step.written, got, stderr.String(), want, step.stderr)
		}
	}
}
