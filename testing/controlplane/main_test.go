package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/testing/controlplane"
)

// TestMain makes the test binary a process that starts a control plane and dies,
// when it is told to by the environment.
func TestMain(m *testing.M) {
	if death := os.Getenv(deathVariable); death != "" {
		startAndDie(death)
	}
	os.Exit(m.Run())
}

// ownTemp makes a temporary folder of its own for what the test starts.
func ownTemp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

// nothingLeft fails the test if a file in dir, or a process with a file in dir
// among its arguments, is still there after a few seconds.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = processes(t, dir)
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if left = append(left, files...); len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

// processes returns the command lines that contain text.
func processes(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	if runtime.GOOS == "linux" {
		names, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			// A process may have ended since it was listed.
			if line, err := os.ReadFile(name); err == nil {
				all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	} else {
		lines, err := exec.CommandContext(t.Context(), "ps", "-axwwo", "args").Output()
		if err != nil {
			t.Fatal(err)
		}
		all = strings.Split(string(lines), "\n")
	}
	var found []string
	for _, line := range all {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// kubectl runs kubectl, which has to succeed, and returns what it printed.
func kubectl(t *testing.T, c *controlplane.ControlPlane, user *controlplane.User, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t.Context(), c, user, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryKubectl(ctx context.Context, c *controlplane.ControlPlane, user *controlplane.User, args ...string) (string, error) {
	cmd := c.Kubectl(ctx, user, args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errOut.String())
	}
	return out.String(), nil
}
