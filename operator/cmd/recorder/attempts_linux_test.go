package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Else it would prove nothing that they fail on the recorder.
func TestWhatIsTriedOnTheRecorderWorksOnAProcessWithoutGuards(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); !errors.Is(err, fs.ErrNotExist) && strings.TrimSpace(string(scope)) != "0" {
		t.Skipf("this kernel lets nobody trace a process that is not a child: ptrace_scope is %q", scope)
	}
	attacker := filepath.Join(publicDir(t), "attacker")
	content, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, writeProgram(attacker, content)); err != nil {
		t.Fatal(err)
	}
	c := launchAs(t, nobody, "/", sh(attacker+"; exit 0"), true, asAttacker+"="+attacker)
	c.expect("ready")
	c.handTo(nobody)
	c.send(c.tty() + "\n")
	c.expect("tried")
	text := string(c.wait().stdout)
	for _, each := range attempts {
		// Another program may have nothing at the address that is read; it is found out by reading.
		if _, result, _ := strings.Cut(text, "working, to "+each.what+": "); !strings.HasPrefix(result, "<nil>\r") && !strings.HasPrefix(result, syscall.EFAULT.Error()) {
			t.Errorf("to %s does not work: %q", each.what, text)
		}
	}
}
