//go:build linux && e2e

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The supervisor is the program itself, which is this one in tests.
func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] == superviseCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

// It runs beside the cluster of `make cluster-up`, whose binaries it uses.
func TestAClusterThatWentDownLeavesNothingBehind(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a cluster needs root")
	}
	c := newTestCluster(t)
	t.Cleanup(func() { _ = c.down(context.Background()) })
	if err := c.up(t.Context(), "../../bin/k8s/current", "../../bin/busybox.tar"); err != nil {
		t.Fatal(err)
	}
	namespace := c.namespace(t)
	for _, kind := range []string{"process", "interface", "cgroup"} {
		if !slices.ContainsFunc(c.seen(t, namespace), func(seen string) bool { return strings.HasPrefix(seen, kind) }) {
			t.Fatalf("the cluster is up, and no %s of it is seen: this test would not see what is left, either", kind)
		}
	}
	if err := c.up(t.Context(), "../../bin/k8s/current", "../../bin/busybox.tar"); err != nil {
		t.Errorf("up, when it is up: %v", err)
	}
	for range 2 {
		if err := c.down(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, left := range c.seen(t, namespace) {
		t.Errorf("left behind: %s", left)
	}
	if _, err := os.Stat(c.path("logs", "kubelet.log")); err != nil {
		t.Errorf("the logs are to be kept: %v", err)
	}
}

func TestAClusterThatDoesNotStartIsRemovedAndSaysWhy(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for what does not come; the long form does")
	}
	if os.Geteuid() != 0 {
		t.Skip("a cluster needs root")
	}
	c := newTestCluster(t)
	if err := c.up(t.Context(), t.TempDir(), "../../bin/busybox.tar"); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("a folder without binaries: got %v, want an error that names the first of them", err)
	}
	for _, left := range c.seen(t, "") {
		t.Errorf("left behind: %s", left)
	}
}

func TestAFolderThatHoldsSomethingElseIsLeftAsItIs(t *testing.T) {
	c := newTestCluster(t)
	file := c.path("thesis.txt")
	if err := write(file, []byte("all of it")); err != nil {
		t.Fatal(err)
	}
	if err := c.claim(); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Errorf("up: got %v, want an error that names the file", err)
	}
	if err := c.down(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func newTestCluster(t *testing.T) *cluster {
	t.Helper()
	c, err := newCluster(filepath.Join(t.TempDir(), "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// seen lists what of a cluster the machine sees: processes in its namespace, mounts
// of its folder, its interface, its cgroups. Others may run beside it.
func (c *cluster) seen(t *testing.T, namespace string) []string {
	t.Helper()
	var state []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.dir) {
			state = append(state, "mount "+strings.TrimSpace(line))
		}
	}
	if _, err := net.InterfaceByName(c.name()); err == nil {
		state = append(state, "interface "+c.name())
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		if in, err := os.Readlink(process + "/ns/pid"); err == nil && in == namespace {
			state = append(state, "process "+process)
		}
	}
	for _, cgroup := range c.cgroups() {
		state = append(state, "cgroup "+cgroup)
	}
	return state
}

// namespace is that of the processes.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	pid, err := c.supervisor()
	if err != nil || pid == 0 {
		t.Fatalf("the supervisor is process %d, %v", pid, err)
	}
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid_for_children", pid))
	if err != nil {
		t.Fatal(err)
	}
	return namespace
}
