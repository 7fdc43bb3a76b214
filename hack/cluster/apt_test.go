//go:build linux && e2e

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAptGetWaitsForTheLockThatAnotherHolds(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("it is for machines with apt-get:", err)
	}
	cache := t.TempDir()
	lock, err := os.Create(filepath.Join(cache, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(lock.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- aptGet(t.Context(), "clean", "-o", "Dir::Cache::archives="+cache) }()
	select {
	case err := <-done:
		t.Fatalf("while another holds the lock: %v", err)
	case <-time.After(time.Second): // that nothing happens takes time to see
	}
	if err := lock.Close(); err != nil { // which releases it
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
