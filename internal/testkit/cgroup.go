package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Cgroup limits the memory of a program.
type Cgroup struct{ dir, limit, usage, peak, kills string }

// NewCgroup makes a cgroup of either version with a limit in bytes. It is removed when the test ends.
func NewCgroup(t *testing.T, limit int) *Cgroup {
	t.Helper()
	c := &Cgroup{limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", peak: "memory.max_usage_in_bytes", kills: "memory.oom_control"}
	root := "/sys/fs/cgroup/memory"
	if controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(controllers), "memory") {
		root = "/sys/fs/cgroup"
		c.limit, c.usage, c.peak, c.kills = "memory.max", "memory.current", "memory.peak", "memory.events"
		_ = os.WriteFile(root+"/cgroup.subtree_control", []byte("+memory"), 0o600) // the limit shows whether it is needed
	}
	dir, err := os.MkdirTemp(root, "admitkit-attack-")
	if err == nil {
		c.dir = dir
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		err = os.WriteFile(filepath.Join(dir, c.limit), []byte(strconv.Itoa(limit)), 0o600)
	}
	if err != nil {
		fmt.Printf("SKIPPED %s: it needs a cgroup: run it as root on Linux, where cgroups can be made: %v\n", t.Name(), err)
		t.Skip(err)
	}
	return c
}

// Command returns one that runs a program in the cgroup from its first moment.
func (c *Cgroup) Command(program string, args ...string) *exec.Cmd {
	return exec.Command("/bin/sh", append([]string{"-c", `echo $$ > ` + filepath.Join(c.dir, "cgroup.procs") + ` && exec "$0" "$@"`, program}, args...)...)
}

// Usage returns how many bytes the program occupies.
func (c *Cgroup) Usage(t *testing.T) int64 { t.Helper(); return c.number(t, c.usage) }

// Peak returns the most bytes that the program occupied.
func (c *Cgroup) Peak(t *testing.T) int64 { t.Helper(); return c.number(t, c.peak) }

func (c *Cgroup) read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

func (c *Cgroup) number(t *testing.T, file string) int64 {
	t.Helper()
	number, err := strconv.ParseInt(c.read(t, file), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return number
}

// Killed returns how often the kernel has ended the program because of the limit.
func (c *Cgroup) Killed(t *testing.T) int64 {
	t.Helper()
	for line := range strings.Lines(c.read(t, c.kills)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, err := strconv.ParseInt(count, 10, 64)
			if err != nil {
				t.Error(err)
			}
			return kills
		}
	}
	t.Errorf("%s does not say how many processes were killed", c.kills)
	return 0
}
