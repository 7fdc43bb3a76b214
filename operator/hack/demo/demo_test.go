package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheDemoEndsWithinAMinuteAndLeavesNothing runs the demo as a newcomer
// does, from the built binary.
func TestTheDemoEndsWithinAMinuteAndLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("the demo is run by `make demo`; its time is measured by `make figures`")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "demo")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	temp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temp, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	demo := exec.CommandContext(ctx, binary)
	demo.Env = append(os.Environ(), "TMPDIR="+temp)
	output, err := demo.CombinedOutput()
	took := time.Since(began)
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if last := lines[len(lines)-1]; err != nil || last != "demo: ok" {
		t.Fatalf("the demo ends with %q, %v: %s", last, err, output)
	}
	if took > time.Minute {
		t.Errorf("the demo took %s", took)
	}
	if left := processesWith(t, temp); len(left) > 0 {
		t.Errorf("the demo leaves processes behind: %q", left)
	}
	if files, err := os.ReadDir(temp); err != nil || len(files) > 0 {
		t.Errorf("the demo leaves files behind: %v, %v", files, err)
	}
	fmt.Printf("FIGURE demo.s=%.1f s\n", took.Seconds())
}

// TestADemoFromNothingIsAffordable runs make demo as a newcomer without a network for
// anything but modules does: in a new clone of the last commit, with nothing compiled.
func TestADemoFromNothingIsAffordable(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles kube-apiserver; `make figures` measures it")
	}
	dir := t.TempDir()
	clone := filepath.Join(dir, "clone")
	if output, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", "../../..", clone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	demo := exec.CommandContext(t.Context(), "make", "-C", clone, "demo")
	demo.Env = append(os.Environ(), "GOCACHE="+filepath.Join(dir, "cache"), "K8S_DOWNLOAD=no", "K8S=", "KUBEBUILDER_ASSETS=", "MAKEFLAGS=")
	output, err := demo.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "demo: ok") {
		t.Fatalf("%v: %s", err, output)
	}
	if !strings.Contains(string(output), "packages are left to compile, now ") {
		t.Errorf("it does not say what it compiles: %s", output)
	}
	// Those of all processes that it waited for, and that these waited for.
	took := demo.ProcessState.UserTime() + demo.ProcessState.SystemTime()
	if took > 900*time.Second {
		t.Errorf("it took %s of processor time", took)
	}
	fmt.Printf("FIGURE demo.cold_cpu_s=%.0f s\n", took.Seconds())
}

// processesWith returns the command lines that name a path: each process of a
// control plane names its folder.
func processesWith(t *testing.T, path string) []string {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "ps", "-eo", "args").Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, path) {
			found = append(found, line)
		}
	}
	return found
}
