package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// plan is what a run does.
type plan struct {
	options
	release release
	// version names the folder.
	version string
	// assets is the folder that KUBEBUILDER_ASSETS names, unless a version is chosen.
	assets   string
	dir      string
	binaries []binary
}

func newPlan(ctx context.Context, o options) (*plan, error) {
	p := &plan{options: o, release: supported[0], version: supported[0].version}
	if o.out == "" {
		return nil, errors.New("-out is required: the folder that gets the binaries, for example bin/k8s")
	}
	if !slices.Contains([]string{"", "yes", "no"}, o.download) {
		return nil, fmt.Errorf("K8S_DOWNLOAD (-download) is %q: it must be yes or no", o.download)
	}
	var err error
	if p.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if o.k8s != "" {
		if p.release, err = find(o.k8s); err != nil {
			return nil, err
		}
		p.version = p.release.version
		// make sets it to this folder, for the tests.
		if own := filepath.Join(p.out, o.k8s); assets != "" && filepath.Clean(assets) != own {
			return nil, fmt.Errorf("K8S (-k8s) is %s and KUBEBUILDER_ASSETS is %s: each chooses a version, so unset one of them", o.k8s, assets)
		}
	} else if p.assets = assets; assets != "" {
		if err = checkAssets(assets); err != nil {
			return nil, err
		}
		if p.version, err = versionOf(ctx, p.assets); err != nil {
			return nil, err
		}
	}
	p.dir = filepath.Join(p.out, p.version)
	p.binaries, err = choose(o.only, o.node)
	return p, err
}

// choose returns the binaries that a user names.
func choose(only string, node bool) ([]binary, error) {
	all := slices.Clone(binaries)
	if node {
		all = append(all, nodeBinaries...)
	}
	if only == "" {
		return all, nil
	}
	var chosen []binary
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(b binary) bool { return b.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: %q is no binary that is made here", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// checkAssets reports a folder that would be ignored, so that the tests would run on another Kubernetes.
func checkAssets(assets string) error {
	const remedy = "name the absolute path of a folder that has binaries of Kubernetes, or unset KUBEBUILDER_ASSETS to get the default version"
	if info, err := os.Stat(assets); !filepath.IsAbs(assets) || err != nil || !info.IsDir() {
		return fmt.Errorf("KUBEBUILDER_ASSETS is %q, which is not an absolute path of a folder that exists: %s", assets, remedy)
	}
	holds := func(b binary) bool { return executable(filepath.Join(assets, b.name)) }
	if !slices.ContainsFunc(binaries, holds) && !slices.ContainsFunc(nodeBinaries, holds) {
		return fmt.Errorf("KUBEBUILDER_ASSETS is %q, which holds none of the binaries: %s", assets, remedy)
	}
	return nil
}

var versionPattern = regexp.MustCompile(`v\d+\.\d+\.\d+\S*`)

// versionOf returns the version that names the folder: that of the
// kube-apiserver in assets, or the one built here.
func versionOf(ctx context.Context, assets string) (string, error) {
	if !executable(filepath.Join(assets, "kube-apiserver")) {
		return supported[0].version, nil
	}
	text, err := exec.CommandContext(ctx, filepath.Join(assets, "kube-apiserver"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("KUBEBUILDER_ASSETS: %s/kube-apiserver --version: %w", assets, err)
	}
	version := versionPattern.FindString(string(text))
	if version == "" {
		return "", fmt.Errorf("KUBEBUILDER_ASSETS: %s/kube-apiserver --version names no version: %q", assets, text)
	}
	return version, nil
}

// missing returns the binaries that dir does not have.
func (p *plan) missing() []binary {
	return slices.DeleteFunc(slices.Clone(p.binaries), func(b binary) bool { return executable(filepath.Join(p.dir, b.name)) })
}

// take links the binaries that KUBEBUILDER_ASSETS holds.
func (p *plan) take() error {
	for _, b := range p.missing() {
		if source := filepath.Join(p.assets, b.name); p.assets != "" && executable(source) {
			if err := replaceLink(source, filepath.Join(p.dir, b.name)); err != nil {
				return err
			}
			fmt.Printf("controlplane: %s taken from %s\n", b.name, p.assets)
		}
	}
	return nil
}

// share links what does not depend on the version of Kubernetes, and is made
// for the default one.
func (p *plan) share(ctx context.Context) error {
	if p.release.main() {
		return nil
	}
	shared := *p
	shared.release, shared.version = supported[0], supported[0].version
	shared.dir = filepath.Join(p.out, shared.version)
	shared.binaries = slices.DeleteFunc(p.missing(), binary.versioned)
	if err := shared.get(ctx); err != nil {
		return err
	}
	for _, b := range shared.binaries {
		if err := replaceLink(filepath.Join("..", shared.version, b.name), filepath.Join(p.dir, b.name)); err != nil {
			return err
		}
	}
	return nil
}

// get makes the binaries of one version that are missing.
func (p *plan) get(ctx context.Context) error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	if len(p.missing()) == 0 {
		return nil // without waiting for a build of something else
	}
	unlock, err := lock(p.dir)
	if err != nil {
		return err
	}
	defer unlock()
	removeLeftovers(p.dir) // under the lock nobody else builds
	if err := p.take(); err != nil {
		return err
	}
	if err := p.share(ctx); err != nil {
		return err
	}
	if err := p.fetch(ctx); err != nil {
		return err
	}
	return p.build(ctx)
}

// fetch takes what is published. That nothing can be had is no error: it is built. A disk that
// cannot be written is one, since a build would end with it as well, minutes later.
func (p *plan) fetch(ctx context.Context) error {
	f := newFetcher(p.index, p.limits)
	taken := p.version
	err := p.fetchFrom(ctx, published, func(names []string) (publisher string, err error) {
		if taken, err = f.fetch(ctx, p.dir, p.version, names); err != nil {
			taken = p.version
		}
		return "envtest, for Kubernetes " + taken, err
	})
	if err != nil {
		return err
	}
	if taken != p.version {
		fmt.Printf("controlplane: note: Kubernetes %s is not published; %s is the nearest patch. K8S_DOWNLOAD=no builds %s in its place.\n", p.version, taken, p.version)
	}
	return p.fetchFrom(ctx, []string{kwok}, func([]string) (publisher string, err error) {
		return "its project, as " + kwokVersion, f.fetchKwok(ctx, p.dir, p.kwok, p.kwokSums)
	})
}

// fetchFrom takes those of the named binaries that are missing.
func (p *plan) fetchFrom(ctx context.Context, names []string, fetch func(names []string) (publisher string, err error)) error {
	var wanted []string
	for _, b := range p.missing() {
		if slices.Contains(names, b.name) {
			wanted = append(wanted, b.name)
		}
	}
	list := strings.Join(wanted, ", ")
	if len(wanted) == 0 {
		return nil
	}
	if p.download == "no" {
		fmt.Printf("controlplane: %s: not downloaded, but built (K8S_DOWNLOAD=no)\n", list)
		return nil
	}
	began := time.Now()
	publisher, err := fetch(wanted)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case unwritable(err):
		return fmt.Errorf("downloading %s: %w", list, err)
	case err != nil:
		fmt.Printf("controlplane: %s: built, since the download fails: %v\n", list, err)
	default:
		fmt.Printf("controlplane: %s: downloaded and verified as published by %s, in %s\n", list, publisher, time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}
