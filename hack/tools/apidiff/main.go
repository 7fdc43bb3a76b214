// Command apidiff compares the public API of the module in a folder with that of its
// last release, the highest tag of a version that HEAD has. It fails if an
// incompatible change is not named in CHANGELOG.md, among the changes since that release,
// under the heading "Incompatible":
//
//	### Incompatible
//
//	- `manager.Options.Port` is an int32.
//
//	go run -C hack/tools ./apidiff -dir "$PWD"
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/mod/semver"
	"golang.org/x/tools/go/packages"

	"github.com/admitkit/admitkit/hack/tools/public"
)

func main() {
	dir := flag.String("dir", ".", "root of the repository")
	flag.Parse()
	text, err := compare(*dir)
	fmt.Print(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "apidiff:", err)
		os.Exit(1)
	}
}

// compare returns what has changed, and an error if that needs to be named.
func compare(dir string) (string, error) {
	tag, err := lastRelease(dir)
	if err != nil {
		return "", err
	}
	if tag == "" {
		return noRelease(dir)
	}
	released, err := os.MkdirTemp("", "apidiff-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(released) }()
	if _, err := git(dir, "clone", "--quiet", "--shared", "--branch", tag, ".", released); err != nil {
		return "", err
	}
	var changes []change
	for _, module := range []string{".", "operator"} {
		_, before := os.Stat(filepath.Join(released, module))
		if _, now := os.Stat(filepath.Join(dir, module)); before != nil && now != nil {
			continue // as in the tests, whose repository has one module
		}
		was, err := load(filepath.Join(released, module))
		if err != nil {
			return "", fmt.Errorf("%s: %w", tag, err)
		}
		is, err := load(filepath.Join(dir, module))
		if err != nil {
			return "", err
		}
		changes = append(changes, changesOf(was, is)...)
	}
	changelog, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d changes of the public API since %s\n", len(changes), tag)
	var errs []error
	section := incompatible(string(changelog), tag)
	for _, c := range changes {
		if c.compatible {
			fmt.Fprintf(&text, "  compatible: %s: %s\n", c.name, c.text)
			continue
		}
		fmt.Fprintf(&text, "  INCOMPATIBLE: %s: %s\n", c.name, c.text)
		if !strings.Contains(section, "`"+c.name+"`") {
			errs = append(errs, fmt.Errorf("since %s, %s: %s: that is incompatible; undo it, or name `%s` in CHANGELOG.md, "+
				"above the heading of %s, under ### Incompatible", tag, c.name, c.text, c.name, tag))
		}
	}
	return text.String(), errors.Join(errs...)
}

// noRelease says that nothing was compared, which looks like success otherwise.
func noRelease(dir string) (string, error) {
	shallow, err := git(dir, "rev-parse", "--is-shallow-repository")
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(shallow) == "true" {
		return "apidiff: NOTHING IS COMPARED: this clone is shallow and has no tag of a release; git fetch --unshallow --tags gets them\n", nil
	}
	return "apidiff: NOTHING IS COMPARED: there is no release yet, no tag such as v0.1.0; until then, docs/api.txt shows what changes\n", nil
}

// lastRelease returns the highest version that HEAD has, "" if it has none. A
// prerelease promises nothing.
func lastRelease(dir string) (string, error) {
	tags, err := git(dir, "tag", "--merged", "HEAD", "--list", "v*")
	if err != nil {
		return "", err
	}
	versions := slices.DeleteFunc(strings.Fields(tags), func(tag string) bool {
		return !semver.IsValid(tag) || semver.Canonical(tag) != tag || semver.Prerelease(tag) != ""
	})
	if len(versions) == 0 {
		return "", nil
	}
	return slices.MaxFunc(versions, semver.Compare), nil
}

func git(dir string, args ...string) (string, error) {
	command := exec.Command("git", args...)
	command.Dir = dir
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// load returns the public packages of a module.
func load(dir string) (*apidiff.Module, error) {
	// Of a workspace, only that of the module itself counts.
	config := &packages.Config{Dir: dir, Mode: packages.NeedName | packages.NeedTypes | packages.NeedModule, Env: append(os.Environ(), "GOWORK=")}
	loaded, err := packages.Load(config, "./...")
	if err != nil {
		return nil, err
	}
	module := &apidiff.Module{}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if p.Module == nil {
			return nil, fmt.Errorf("package %s is in no module", p.PkgPath)
		}
		module.Path = p.Module.Path
		if public.Is(p.Name, strings.TrimPrefix(p.PkgPath, module.Path+"/")) {
			module.Packages = append(module.Packages, p.Types)
		}
	}
	return module, nil
}

type change struct {
	name, text string
	compatible bool
}

// changesOf returns the changes with names such as manager.Options.Port.
func changesOf(was, is *apidiff.Module) []change {
	var all []change
	for _, c := range apidiff.ModuleChanges(was, is).Changes {
		name, text, _ := strings.Cut(c.Message, ": ")
		name = strings.TrimPrefix(name, "package ")
		name = strings.TrimPrefix(strings.TrimPrefix(name, was.Path+"/"), "./")
		// ./manager.(*Manager).Stop: a receiver's pointer does not matter to a reader.
		name = strings.NewReplacer("(*", "", ")", "").Replace(name)
		all = append(all, change{name, text, c.Compatible})
	}
	slices.SortFunc(all, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.text, b.text))
	})
	return all
}

// incompatible returns the text under the headings "Incompatible" of a changelog,
// above the heading of a version.
func incompatible(changelog, version string) string {
	var text strings.Builder
	inside := false
	for line := range strings.Lines(changelog) {
		heading := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(heading, "## ["+strings.TrimPrefix(version, "v")+"]"):
			return text.String()
		case strings.HasPrefix(heading, "## "):
			inside = false
		case strings.HasPrefix(heading, "### "):
			inside = heading == "### Incompatible"
		case inside:
			text.WriteString(line)
		}
	}
	return text.String()
}
