package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
)

// supported are the Kubernetes versions on which admitkit is tested: the newest
// patch of each minor that the Go module proxy serves. This table is the only
// place that names them, but for the first: go.mod has that one, too, and decides.
var supported = []release{
	{"1.37", "v1.37.2"},
	{"1.36", "v1.36.4"},
	{"1.35", "v1.35.8"},
	{"1.34", "v1.34.10"},
}

type release struct{ minor, version string }

// main is the version that this module builds and that tests run on by default.
func (r release) main() bool { return r == supported[0] }

// find returns the release that a user names: 1.35 or v1.35.8.
func find(name string) (release, error) {
	known := make([]string, 0, len(supported))
	for _, r := range supported {
		if name == r.minor || name == r.version {
			return r, nil
		}
		known = append(known, fmt.Sprintf("%s (%s)", r.minor, r.version))
	}
	return release{}, fmt.Errorf("K8S (-k8s): Kubernetes %q is not built here: name one of %s", name, strings.Join(known, ", "))
}

// writeModule makes a folder into a module from which go builds the commands of
// another Kubernetes version than this module's. Its requirements are upstream's
// own: those of this module are newer than that version was ever built with.
func writeModule(ctx context.Context, dir, version string) error {
	path := filepath.Join(dir, "go.mod")
	if err := os.WriteFile(path, []byte("module controlplane\n"), 0o600); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "list", "-m", "-json", "k8s.io/kubernetes@"+version)
	command.Dir, command.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return fmt.Errorf("asking the Go module proxy for k8s.io/kubernetes %s: %w", version, err)
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal(output, &module); err != nil {
		return fmt.Errorf("go list -m -json k8s.io/kubernetes@%s: %w", version, err)
	}
	upstream, err := os.ReadFile(module.GoMod)
	if err != nil {
		return err
	}
	text, err := moduleFor(version, upstream)
	if err != nil {
		return fmt.Errorf("go.mod of k8s.io/kubernetes %s: %w", version, err)
	}
	return os.WriteFile(path, text, 0o600)
}

// moduleFor makes the go.mod of a Kubernetes release into that of a module beside
// it. Upstream replaces its staging modules by folders that the module's zip does
// not hold; they are published as modules of their own, v1.35.8 as v0.35.8.
func moduleFor(version string, upstream []byte) ([]byte, error) {
	file, err := modfile.Parse("go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	if file.Module == nil || file.Module.Mod.Path != "k8s.io/kubernetes" {
		return nil, errors.New("it is not the module k8s.io/kubernetes")
	}
	patch, ok := strings.CutPrefix(version, "v1.")
	if !ok {
		return nil, fmt.Errorf("version %q does not begin with v1.", version)
	}
	if err := file.AddModuleStmt("controlplane"); err != nil {
		return nil, err
	}
	if err := file.AddRequire("k8s.io/kubernetes", version); err != nil {
		return nil, err
	}
	staged := map[string]bool{}
	for _, replace := range file.Replace {
		if replace.New.Path != "./staging/src/"+replace.Old.Path {
			continue
		}
		staged[replace.Old.Path] = true
		if err := file.AddReplace(replace.Old.Path, "", replace.Old.Path, "v0."+patch); err != nil {
			return nil, err
		}
	}
	for _, require := range file.Require {
		if require.Mod.Version == "v0.0.0" && !staged[require.Mod.Path] {
			return nil, fmt.Errorf("no replacement is known for %s v0.0.0", require.Mod.Path)
		}
	}
	file.Cleanup()
	return file.Format()
}
