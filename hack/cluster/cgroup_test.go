//go:build linux && e2e

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// As the root of a container that has a cgroup namespace of its own.
func TestACgroupThatHoldsProcessesPassesItsControllersOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	cgroup, controller := newTestCgroup(t)
	process := exec.Command("sleep", "600")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	pid := strconv.Itoa(process.Process.Pid)
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.subtree_control"), []byte("+"+controller), 0o600); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("got %v, want EBUSY: this test would show nothing", err)
	}
	if err := passOn(t.Context(), cgroup); err != nil {
		t.Fatal(err)
	}
	if passed := words(t, cgroup, "cgroup.subtree_control"); !slices.Contains(passed, controller) {
		t.Errorf("it passes on %v, want %s among them", passed, controller)
	}
	if moved := words(t, cgroup, "init", "cgroup.procs"); !slices.Equal(moved, []string{pid}) {
		t.Errorf("init holds %v, want process %s", moved, pid)
	}
}

// newTestCgroup makes one of version 2 that has a controller, wherever they are
// mounted, and removes it when its processes have ended.
func newTestCgroup(t *testing.T) (cgroup, controller string) {
	t.Helper()
	var root string
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			root = dir
			break
		}
	}
	if root == "" {
		t.Skip("this machine has no cgroups of version 2")
	}
	controllers := words(t, root, "cgroup.controllers")
	if len(controllers) == 0 {
		t.Skip("all controllers of this machine are with version 1")
	}
	controller = controllers[0]
	if !slices.Contains(words(t, root, "cgroup.subtree_control"), controller) {
		control := filepath.Join(root, "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+"+controller), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.WriteFile(control, []byte("-"+controller), 0o600) })
	}
	cgroup, err := os.MkdirTemp(root, "admitkit-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{filepath.Join(cgroup, "init"), cgroup} {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	return cgroup, controller
}

func words(t *testing.T, elements ...string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}
