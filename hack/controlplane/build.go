package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// build builds what is still missing.
func (p *plan) build(ctx context.Context) error {
	missing := p.missing()
	if len(missing) == 0 {
		return nil
	}
	defer removeLeftovers(p.dir)
	module, err := p.moduleOf(ctx)
	if err != nil {
		return err
	}
	for i, b := range missing {
		if p.assets != "" && strings.HasPrefix(b.name, "kube") && p.version != p.release.version {
			fmt.Printf("controlplane: warning: %s is built as %s, but KUBEBUILDER_ASSETS holds %s\n", b.name, p.release.version, p.version)
		}
		fmt.Printf("controlplane: %s, step %d of %d: building %s (about %s the first time on two cores, a minute at most once Go's build cache is warm)\n",
			p.release.version, i+1, len(missing), b.name, b.first)
		began := time.Now()
		if err := p.buildOne(ctx, module, b); err != nil {
			return fmt.Errorf("building %s: %w", b.name, err)
		}
		fmt.Printf("controlplane: step %d of %d: %s built in %s\n", i+1, len(missing), b.name, time.Since(began).Round(time.Second))
	}
	return nil
}

// moduleOf returns the folder of the module to build from.
func (p *plan) moduleOf(ctx context.Context) (string, error) {
	if p.release.main() {
		return p.module, nil
	}
	dir, err := os.MkdirTemp(p.dir, leftover+"module-")
	if err != nil {
		return "", err
	}
	return dir, writeModule(ctx, dir, p.version)
}

// buildOne makes one binary beside its final place and renames it, so that an
// interrupted build leaves no half of one.
func (p *plan) buildOne(ctx context.Context, module string, b binary) error {
	temp, err := os.MkdirTemp(p.dir, leftover)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	built := filepath.Join(temp, b.name)

	minor := strings.TrimPrefix(p.release.minor, "1.")
	set := " -X k8s.io/component-base/version."
	ldflags := "-s -w" + set + "gitVersion=" + p.release.version + set + "gitMajor=1" + set + "gitMinor=" + minor
	flags := "-trimpath -gcflags=all=-dwarf=false -buildvcs=false" // the Makefile's, for the packages that both compile
	if !p.release.main() {
		flags += " -mod=mod" // its go.sum is made on the way, and checked with the checksum database
	}
	build := goBuild{
		name: b.name, dir: module, pkg: b.pkg, log: filepath.Join(p.out, downloads),
		env: append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="+flags, "BUILT="+built),
	}
	if err := build.run(ctx, `sh -c 'cp "$0" "$BUILT"'`, ldflags); err != nil {
		return err
	}
	return os.Rename(built, filepath.Join(p.dir, b.name))
}
