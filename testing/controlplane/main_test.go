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

	"github.com/admitkit/admitkit/internal/testkit"
)

// TestMain makes the test binary a process that starts a control plane and dies,
// if deathVariable says so.
func TestMain(m *testing.M) {
	if death := os.Getenv(deathVariable); death != "" {
		startAndDie(death)
	}
	os.Exit(m.Run())
}

// ownTemp gives what the test starts a temporary folder of its own.
func ownTemp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

// nothingLeft fails the test if, after a minute, dir still has a file or a
// process still has a file in dir among its arguments.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if err := testkit.Poll(t.Context(), time.Minute, "nothing is left in "+dir, func(context.Context) error {
		left := processes(t, dir)
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if left = append(left, files...); len(left) > 0 {
			err = fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// processes returns the command lines, of all processes, that contain text.
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
