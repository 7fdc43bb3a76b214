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
	c := newCluster(filepath.Join(t.TempDir(), "cluster"))
	before := machineState(t)
	t.Cleanup(func() { _ = c.down(context.Background()) })
	if err := c.up(t.Context(), "../../bin/k8s/current", "../../bin/busybox.tar"); err != nil {
		t.Fatal(err)
	}
	if during := machineState(t); slices.Equal(during, before) {
		t.Fatal("the cluster is up, and nothing of it is seen: this test would see nothing that is left, either")
	}
	if err := c.up(t.Context(), "../../bin/k8s/current", "../../bin/busybox.tar"); err != nil {
		t.Errorf("up, when it is up: %v", err)
	}
	for range 2 {
		if err := c.down(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, left := range machineState(t) {
		if !slices.Contains(before, left) {
			t.Errorf("left behind: %s", left)
		}
	}
	if _, err := os.Stat(c.path("logs", "kubelet.log")); err != nil {
		t.Errorf("the logs are to be kept: %v", err)
	}
}

func TestAClusterThatDoesNotStartIsRemovedAndSaysWhy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a cluster needs root")
	}
	c := newCluster(filepath.Join(t.TempDir(), "cluster"))
	before := machineState(t)
	if err := c.up(t.Context(), t.TempDir(), "../../bin/busybox.tar"); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("a folder without binaries: got %v, want an error that names the first of them", err)
	}
	for _, left := range machineState(t) {
		if !slices.Contains(before, left) {
			t.Errorf("left behind: %s", left)
		}
	}
}

// machineState lists what a cluster has: processes, by the names of its programs,
// mounts, interfaces and cgroups.
func machineState(t *testing.T) []string {
	t.Helper()
	var state []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		state = append(state, "mount "+strings.TrimSpace(line))
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		state = append(state, "interface "+i.Name)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	programs := []string{"etcd", "kube-apiserver", "kube-controller", "kube-scheduler", "kube-proxy", "kubelet", "containerd", "containerd-shim", "cluster.test"}
	for _, file := range processes {
		name, err := os.ReadFile(file)
		if program := strings.TrimSpace(string(name)); err == nil && slices.Contains(programs, program) {
			state = append(state, fmt.Sprintf("process %s %s", file, program))
		}
	}
	if err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			state = append(state, "cgroup "+path)
		}
		return nil // cgroups come and go
	}); err != nil {
		t.Fatal(err)
	}
	return state
}
