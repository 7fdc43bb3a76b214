package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const before = `// Package shape is an API.
package shape

// Square has sides.
type Square struct{ Side int }

// Area is its area.
func (s *Square) Area() int { return s.Side * s.Side }

// Unit is 1.
const Unit = 1
`

// repository has a module, with a release unless that is "".
func repository(t *testing.T, release string) (dir string, put func(name, text string)) {
	t.Helper()
	dir = t.TempDir()
	put = func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module example.com/shapes\n\ngo 1.26\n")
	put("shape/shape.go", before)
	put("shape/internal/secret/secret.go", "// Package secret is nobody's.\npackage secret\n\n// Key opens.\nconst Key = 1\n")
	put("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [0.1.0]\n\n### Incompatible\n\n- `shape.Square.Area` was other.\n")
	commands := [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "all"}}
	if release != "" {
		commands = append(commands, []string{"tag", release})
	}
	for _, args := range commands {
		if _, err := git(dir, args...); err != nil {
			t.Fatal(err)
		}
	}
	return dir, put
}

func TestARemovedMethodMustBeInTheChangelog(t *testing.T) {
	dir, put := repository(t, "v0.1.0")
	put("shape/shape.go", strings.ReplaceAll(before, "Area()", "Surface()"))
	text, err := compare(dir)
	if err == nil || !strings.Contains(err.Error(), "`shape.Square.Area`") {
		t.Fatalf("error: %v\n%s", err, text)
	}
	if !strings.Contains(text, "compatible: shape.Square.Surface: added") {
		t.Errorf("the compatible change is not listed: %s", text)
	}
	put("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n### Changed\n\n- `shape.Square.Area`\n\n## [0.1.0]\n")
	if _, err := compare(dir); err == nil {
		t.Error("it is named under another heading, and that is no error")
	}
	put("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n### Incompatible\n\n- `shape.Square.Area` is Surface.\n\n## [0.1.0]\n")
	if text, err := compare(dir); err != nil || !strings.Contains(text, "INCOMPATIBLE: shape.Square.Area: removed") {
		t.Errorf("error: %v\n%s", err, text)
	}
}

func TestARemovedPackageMustBeInTheChangelog(t *testing.T) {
	dir, put := repository(t, "v0.1.0")
	put("form/form.go", "package form\n")
	if err := os.RemoveAll(filepath.Join(dir, "shape")); err != nil {
		t.Fatal(err)
	}
	if _, err := compare(dir); err == nil || !strings.Contains(err.Error(), "name `shape`") {
		t.Errorf("error: %v", err)
	}
}

func TestAdditionsAndInternalPackagesAreCompatible(t *testing.T) {
	dir, put := repository(t, "v0.1.0")
	put("shape/shape.go", before+"\n// Two is 2.\nconst Two = 2\n")
	if err := os.RemoveAll(filepath.Join(dir, "shape/internal")); err != nil {
		t.Fatal(err)
	}
	text, err := compare(dir)
	if err != nil || !strings.HasPrefix(text, "1 changes of the public API since v0.1.0\n") {
		t.Errorf("error: %v\n%s", err, text)
	}
}

func TestTheHighestReleaseIsComparedAndNoPrerelease(t *testing.T) {
	dir, _ := repository(t, "v0.9.0")
	for _, tag := range []string{"v0.10.0", "v0.11.0-rc.1", "vnext"} {
		if _, err := git(dir, "tag", tag); err != nil {
			t.Fatal(err)
		}
	}
	if tag, err := lastRelease(dir); err != nil || tag != "v0.10.0" {
		t.Errorf("%q, %v", tag, err)
	}
}

func TestWithoutAReleaseItSaysThatNothingIsCompared(t *testing.T) {
	dir, put := repository(t, "")
	put("shape/shape.go", "package shape\n")
	text, err := compare(dir)
	if err != nil || !strings.Contains(text, "NOTHING IS COMPARED: there is no release yet") {
		t.Errorf("error: %v\n%s", err, text)
	}
	shallow := filepath.Join(t.TempDir(), "shallow")
	if _, err := git(dir, "clone", "-q", "--depth", "1", "file://"+dir, shallow); err != nil {
		t.Fatal(err)
	}
	text, err = compare(shallow)
	if err != nil || !strings.Contains(text, "git fetch --unshallow --tags") {
		t.Errorf("error: %v\n%s", err, text)
	}
}
