package main

import (
	"archive/zip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

const library, operator = "github.com/admitkit/admitkit", "github.com/admitkit/admitkit/operator"

// proxy serves both modules from the working tree, as a proxy does after their release.
type proxy struct {
	folder, version string
	env             []string // of the go command
}

// newProxy names the version after what it is made of: Go keeps what it got from a proxy.
func newProxy(t *testing.T) proxy {
	t.Helper()
	if err := testkit.OpenSources(); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	files, sum := map[string]map[string][]byte{library: {}, operator: {}}, sha256.New()
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		module := moduleOf(name)
		content, err := os.ReadFile(filepath.Join("../..", name))
		if module == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		files[module][name] = content
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", name, len(content), content)
	}
	p := proxy{folder: t.TempDir(), version: fmt.Sprintf("v0.0.0-20260101000000-%.6x", sum.Sum(nil))}
	for module, contents := range files {
		p.add(t, module, contents)
	}
	// Most of it is compiled already, without cgo, which only the race detector's tests have.
	proxies := "file://" + p.folder + "," + strings.TrimSpace(output(t, "go", "env", "GOPROXY"))
	p.env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOSUMDB=off", "GOBIN="+p.folder, "GOPROXY="+proxies)
	t.Cleanup(func() { p.forget(t) })
	return p
}

// forget removes from Go's cache what it got from the proxy.
func (p proxy) forget(t *testing.T) {
	cache := strings.TrimSpace(output(t, "go", "env", "GOMODCACHE"))
	for _, module := range []string{library, operator} {
		left, _ := filepath.Glob(filepath.Join(cache, "cache/download", module, "@v", p.version+".*"))
		for _, path := range append(left, filepath.Join(cache, module+"@"+p.version)) {
			_ = filepath.WalkDir(path, func(path string, _ fs.DirEntry, _ error) error { return os.Chmod(path, 0o700) })
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	}
}

// moduleOf returns the module that a file of this repository is in, "" if that is a tool.
func moduleOf(name string) string {
	for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join("../..", dir, "go.mod")); err != nil {
			continue
		}
		if dir == "operator" {
			return operator
		}
		return ""
	}
	return library
}

// add writes the files by which a proxy serves a version of a module.
func (p proxy) add(t *testing.T, module string, contents map[string][]byte) {
	t.Helper()
	dir := filepath.Join(p.folder, module, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, p.version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive := zip.NewWriter(file)
	root := strings.TrimPrefix(strings.TrimPrefix(module, library)+"/", "/")
	for name, content := range contents {
		path := strings.TrimPrefix(name, root)
		if path == "go.mod" {
			content = []byte(strings.Replace(string(content), library+" v0.0.0\n", library+" "+p.version+"\n", 1))
			if err := os.WriteFile(filepath.Join(dir, p.version+".mod"), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		entry, err := archive.Create(module + "@" + p.version + "/" + path)
		if err == nil {
			_, err = entry.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, p.version)
	if err := errors.Join(archive.Close(), os.WriteFile(filepath.Join(dir, p.version+".info"), []byte(info), 0o600),
		os.WriteFile(filepath.Join(dir, "list"), []byte(p.version+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// run runs the go command as a user does: with the proxy, without a workspace.
func (p proxy) run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir, command.Env = dir, p.env
	text, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return string(text)
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	text, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestBothModulesAreUsedAsTheirUsersWillUseThem(t *testing.T) {
	p := newProxy(t)
	t.Run("a program of the operator is installed by its version", func(t *testing.T) {
		program := testkit.Long("kubectl-access", "recorder") // the recorder is compiled in a second
		p.run(t, t.TempDir(), "install", operator+"/cmd/"+program+"@"+p.version)
		if text := output(t, filepath.Join(p.folder, program), "version"); !strings.Contains(text, p.version) {
			t.Errorf("version says %s, want %s", text, p.version)
		}
	})
	t.Run("a program of a user's is built with the library alone", func(t *testing.T) {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"go.mod":  "module example.com/stamp\n\ngo 1.26.0\n",
			"main.go": "package main\n\nimport _ \"" + library + "/" + testkit.Long("manager/command", "extension") + "\"\n\nfunc main() {}\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p.run(t, dir, "get", library+"@"+p.version)
		p.run(t, dir, "mod", "tidy")
		p.run(t, dir, "build", ".")
		graph := p.run(t, dir, "list", "-m", "all")
		modules := strings.Count(graph, "\n")
		if strings.Contains(graph, operator) || modules > 170 {
			t.Errorf("the graph has %d modules:\n%s", modules, graph)
		}
		testkit.Figure("library.modules", float64(modules), "modules")
	})
}
