// Command controlplane puts the Kubernetes binaries that tests, demo and
// benchmarks run into a folder: etcd, kube-apiserver, kube-controller-manager,
// kubectl and kwok, and with -node what a real node runs: kubelet, kube-proxy
// and kube-scheduler. A binary that KUBEBUILDER_ASSETS holds is linked from
// there; every other one is built from its Go module, once.
//
// It is safe to interrupt (a binary appears under its name only when it is
// whole), safe to run twice at the same time (the second waits), and does
// nothing when nothing is missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// The versions built here. kubernetesVersion and etcd's stand in go.mod too,
// which decides; kwok has a module graph of its own.
const (
	kubernetesVersion = "v1.37.2"
	kwokVersion       = "v0.8.0"
)

// current is a link beside the version folders to the one last made, which is
// where testing/controlplane looks.
const current = "current"

type binary struct {
	name string
	// pkg is the package to build; with @version, outside this module.
	pkg string
	// first is how long the first build takes on two cores with nothing cached.
	first time.Duration
}

var binaries = []binary{
	{"etcd", "go.etcd.io/etcd/server/v3", 15 * time.Second},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl", 60 * time.Second},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 8*time.Minute + 30*time.Second},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 2*time.Minute + 30*time.Second},
	{"kwok", "sigs.k8s.io/kwok/cmd/kwok@" + kwokVersion, 2*time.Minute + 30*time.Second},
}

// nodeBinaries share most of their packages with those above.
var nodeBinaries = []binary{
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet", 50 * time.Second},
	{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", 20 * time.Second},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 20 * time.Second},
}

func main() {
	module := flag.String("module", ".", "the folder of this module, where go build is run")
	out := flag.String("out", "", "the folder that gets <version>/ and the link "+current+" (required)")
	node := flag.Bool("node", false, "get the binaries of a real node, too")
	flag.Parse()
	if *node {
		binaries = append(binaries, nodeBinaries...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *module, *out); err != nil {
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has just run
	}
}

// removeLeftovers removes what a build that was killed left behind.
func removeLeftovers(dir string) {
	leftovers, err := filepath.Glob(filepath.Join(dir, ".building-*"))
	if err != nil {
		return
	}
	for _, leftover := range leftovers {
		_ = os.RemoveAll(leftover)
	}
}

// take links the binaries that assets has into dir, and returns those that have to be
// built.
func take(assets, dir string) ([]binary, error) {
	missing := make([]binary, 0, len(binaries))
	for _, b := range binaries {
		target := filepath.Join(dir, b.name)
		if executable(target) {
			continue
		}
		if source := filepath.Join(assets, b.name); assets != "" && executable(source) {
			if err := replaceLink(source, target); err != nil {
				return nil, err
			}
			fmt.Printf("controlplane: %s taken from %s\n", b.name, assets)
			continue
		}
		missing = append(missing, b)
	}
	return missing, nil
}

func run(ctx context.Context, module, out string) error {
	if out == "" {
		return errors.New("-out is required: the folder that gets the binaries, for example bin/k8s")
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	version, err := versionOf(ctx, assets)
	if err != nil {
		return err
	}
	dir := filepath.Join(out, version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(out)
	if err != nil {
		return err
	}
	defer unlock()

	removeLeftovers(dir) // under the lock nobody else builds
	missing, err := take(assets, dir)
	if err != nil {
		return err
	}
	for i, b := range missing {
		if assets != "" && strings.HasPrefix(b.name, "kube") && version != kubernetesVersion {
			fmt.Printf("controlplane: warning: %s is built as %s, but KUBEBUILDER_ASSETS holds %s\n", b.name, kubernetesVersion, version)
		}
		fmt.Printf("controlplane: step %d of %d: building %s (about %s the first time on two cores, a minute at most once Go's build cache is warm)\n",
			i+1, len(missing), b.name, b.first)
		began := time.Now()
		if err := build(ctx, module, dir, b); err != nil {
			return fmt.Errorf("building %s: %w", b.name, err)
		}
		fmt.Printf("controlplane: step %d of %d: %s built in %s\n", i+1, len(missing), b.name, time.Since(began).Round(time.Second))
	}
	if err := replaceLink(version, filepath.Join(out, current)); err != nil {
		return err
	}
	fmt.Printf("controlplane: %s is complete\n", dir)
	return nil
}

var versionPattern = regexp.MustCompile(`v\d+\.\d+\.\d+\S*`)

// versionOf returns the version that names the folder: that of the
// kube-apiserver in assets, or the one built here.
func versionOf(ctx context.Context, assets string) (string, error) {
	if assets == "" || !executable(filepath.Join(assets, "kube-apiserver")) {
		return kubernetesVersion, nil
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

// build makes one binary beside its final place and renames it, so that an
// interrupted build leaves no half of one. It is go run that builds it, since that
// keeps what it has linked in Go's build cache, for the next clone of this repository.
func build(ctx context.Context, module, dir string, b binary) error {
	temp, err := os.MkdirTemp(dir, ".building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	built := filepath.Join(temp, b.name)

	minor := strings.Split(kubernetesVersion, ".")[1]
	set := " -X k8s.io/component-base/version."
	ldflags := "-s -w" + set + "gitVersion=" + kubernetesVersion + set + "gitMajor=1" + set + "gitMinor=" + minor
	cmd := exec.CommandContext(ctx, "go", "run", "-trimpath", "-ldflags", ldflags, "-exec", `sh -c 'cp "$0" "$BUILT"'`, b.pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "BUILT="+built)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	began := time.Now()
	progress := time.NewTicker(time.Minute)
	defer progress.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return os.Rename(built, filepath.Join(dir, b.name))
		case <-progress.C:
			fmt.Printf("controlplane: still building %s, %s\n", b.name, time.Since(began).Round(time.Second))
		}
	}
}

// lock keeps a second run out of the folder until the first is done. The
// kernel releases it when the process ends, however it ends.
func lock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	fd := int(file.Fd())
	if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Println("controlplane: another build is under way; waiting for it")
		if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
			return nil, fmt.Errorf("locking %s: %w", file.Name(), err)
		}
	}
	return func() { _ = file.Close() }, nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// replaceLink points name at target in one step.
func replaceLink(target, name string) error {
	temp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, name)
}
