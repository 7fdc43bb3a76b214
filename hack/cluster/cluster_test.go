//go:build linux && e2e

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
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
	if testing.Short() {
		t.Skip("it starts a second cluster; the long form does")
	}
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
	t.Run("and one that lost its number to it leaves it alone", func(t *testing.T) {
		seen := c.seen(t, namespace)
		lost := newTestCluster(t)
		lost.number = c.number
		if err := write(lost.path(numberFile), []byte(strconv.Itoa(c.number))); err != nil {
			t.Fatal(err)
		}
		if err := lost.down(t.Context()); err != nil {
			t.Error(err)
		}
		for _, was := range seen {
			if strings.HasPrefix(was, "process") { // some come and go
				continue
			}
			if !slices.Contains(c.seen(t, namespace), was) {
				t.Errorf("gone: %s", was)
			}
		}
	})
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

func TestTwoClustersThatStartAtOnceHaveTwoNumbers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a cluster needs root")
	}
	// One that never listens: no more than this starts.
	binaries := t.TempDir()
	if err := os.WriteFile(filepath.Join(binaries, "etcd"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var clusters [2]*cluster
	var starting errgroup.Group
	for i := range clusters {
		clusters[i] = newTestCluster(t)
		t.Cleanup(func() {
			if err := clusters[i].down(context.Background()); err != nil {
				t.Error(err)
			}
		})
		starting.Go(func() error {
			return errors.Join(os.MkdirAll(clusters[i].dir, 0o755), clusters[i].begin(t.Context(), binaries))
		})
	}
	if err := starting.Wait(); err != nil {
		t.Fatal(err)
	}
	if clusters[0].number == clusters[1].number {
		t.Errorf("both are number %d", clusters[0].number)
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
