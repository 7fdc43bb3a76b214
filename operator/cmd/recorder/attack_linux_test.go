package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
)

// asAttacker has the variable by which this program is the command of a session, and attacks
// the recorder.
const asAttacker = "ADMITKIT_TEST_ATTACKER"

// nobody is a user without any right, who has the recorder's UID.
var nobody = &syscall.Credential{Uid: 65534, Gid: 65534}

// attempts are what somebody tries on a process of the same UID. Without an error it works.
var attempts = []struct {
	what string
	try  func(pid int) error
}{
	{"trace it", syscall.PtraceAttach},
	{"read its memory", func(pid int) error { return opens("/proc/%d/mem", pid) }},
	{"read its memory by a call", func(pid int) error {
		buffer := make([]byte, 8)
		local, remote := []unix.Iovec{{Base: &buffer[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}
		_, err := unix.ProcessVMReadv(pid, local, remote, 0)
		return err
	}},
	{"read its environment", func(pid int) error { return opens("/proc/%d/environ", pid) }},
	{"list its files", func(pid int) error { return opens("/proc/%d/fd", pid) }},
	{"find its terminal", func(pid int) error { _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid)); return err }},
	{"read its program", func(pid int) error { return opens("/proc/%d/exe", pid) }},
	{"read the file of its program", func(int) error { return opens("%s", os.Getenv(asAttacker)) }},
	{"have the kernel kill it first", func(pid int) error {
		return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)
	}},
	{"take one of its files", func(pid int) error {
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		for file := range 32 {
			if _, err = unix.PidfdGetfd(process, file, 0); err == nil || !errors.Is(err, unix.EBADF) && !errors.Is(err, unix.EPERM) {
				return err
			}
		}
		return err
	}},
	{"open its terminal", opensTerminal},
}

func opens(format string, of any) error {
	file, err := os.Open(fmt.Sprintf(format, of))
	if err == nil {
		_, err = file.Readdirnames(1) // of what is open anybody may know that it is there
		if errors.Is(err, syscall.ENOTDIR) {
			err = nil
		}
	}
	return err
}

// outerTerminal is the name of that of the recorder. Other tests have terminals that are not reserved.
var outerTerminal string

func opensTerminal(int) error {
	fd, err := syscall.Open(outerTerminal, syscall.O_RDWR|syscall.O_NOCTTY, 0)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return err
}

// attack tries everything on the recorder as it works, and while it is stopped.
func attack() {
	runtime.LockOSThread() // who traces is a thread
	recorder := os.Getppid()
	fmt.Println("ready")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	outerTerminal = strings.TrimSpace(line)
	for _, state := range []string{"working", "stopped"} {
		if state == "stopped" {
			fmt.Println("stopping:", syscall.Kill(recorder, syscall.SIGSTOP))
		}
		results := make([]string, len(attempts))
		for i, each := range attempts {
			results[i] = fmt.Sprintf("%s, to %s: %v", state, each.what, each.try(recorder))
		}
		if state == "stopped" {
			_ = syscall.Kill(recorder, syscall.SIGCONT) // or it is gone, as the test finds
		}
		fmt.Println(strings.Join(results, "\n"))
	}
	fmt.Println("tried")
}

// hardened exposes the recorder as it is in a container: it can be run, and not read.
func (p *place) hardened() {
	p.t.Helper()
	p.expose()
	folder := filepath.Join(filepath.Dir(p.path), "installed")
	if err := os.Mkdir(folder, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if text, err := exec.Command(p.path, "install", folder).CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %s", err, text)
	}
	p.path = filepath.Join(folder, "recorder")
}

func TestTheUserWhoIsRecordedCannotLookIntoTheRecorder(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	p := newPlace(t)
	p.hardened()
	attacker := filepath.Join(filepath.Dir(filepath.Dir(p.path)), "attacker")
	content, err := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, writeProgram(attacker, content)); err != nil {
		t.Fatal(err)
	}
	command := []string{attacker}
	ticket := p.ticket(command)
	c := launchAs(t, nobody, "/", p.wrap(ticket, command), true, asAttacker+"="+p.path)
	c.expect("ready")
	c.handTo(nobody)
	c.send(c.tty() + "\n")
	c.expect("tried")
	got := c.wait()
	text := string(got.stdout)
	for _, state := range []string{"working", "stopped"} {
		for _, each := range attempts {
			_, result, found := strings.Cut(text, state+", to "+each.what+": ")
			result, _, _ = strings.Cut(result, "\r\n")
			refused := false
			for _, errno := range []error{fs.ErrPermission, syscall.EBUSY, syscall.EPERM, syscall.EACCES} {
				refused = refused || strings.Contains(result, errno.Error())
			}
			if !found || !refused {
				t.Errorf("%s, somebody can %s: %q", state, each.what, result)
			}
		}
	}
	if _, err := p.folder.Verify(ticket.ID, p.key); err != nil || got.code != 0 {
		t.Errorf("%d, %q: %v", got.code, text, err)
	}
}

// A process of the container that opens the terminal once the session has ended could print what
// the user sees and the recording has not.
func TestNobodyCanOpenTheTerminalUntilTheRecorderHasGone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh("echo ready; read x; echo over")
	ticket := p.ticket(command)
	c := launch(t, "", p.wrap(ticket, command), true)
	c.expect("ready")
	terminal, gone, tried := c.tty(), make(chan struct{}), make(chan error, 1)
	go func() { tried <- grab(terminal, gone) }()
	c.send("\n")
	_ = c.cmd.Wait() // the state says it
	close(gone)
	if err := <-tried; !errors.Is(err, syscall.EBUSY) {
		t.Errorf("opening the terminal: %v", err)
	}
	got := c.wait()
	if output := p.recording(ticket.ID).output; got.code != 0 || string(output) != string(got.stdout) {
		t.Errorf("%d: the user saw %q, and %q is on record", got.code, got.stdout, output)
	}
}

// grab tries to open a terminal, again and again while it is reserved, for the last time when the
// recorder has gone, and prints there. It returns why it could not.
func grab(terminal string, gone <-chan struct{}) error {
	runtime.LockOSThread() // for ever: nobody else gets a thread without the right
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_ADMIN // by which a terminal opens nevertheless
	if err := unix.Capset(&header, &data[0]); err != nil {
		return err
	}
	for last := false; ; {
		file, err := syscall.Open(terminal, syscall.O_WRONLY|syscall.O_NOCTTY, 0)
		if err == nil {
			_, _ = syscall.Write(file, []byte("beside\n")) // it is open, which fails the test
			return syscall.Close(file)
		}
		if err != syscall.EBUSY || last {
			return err
		}
		select {
		case <-gone:
			last = true
		default:
		}
	}
}

// Who has the recorder's UID can stop and kill it. What that brings is little, and on record.
func TestWhatItsUserDoesToTheRecorderIsOnRecord(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to be another user")
	}
	for name, test := range map[string]struct {
		script string
		code   int
		note   string // "" for none
		sealed bool
		left   int // processes that go on
		prints string
	}{
		"stops and continues it":         {"kill -STOP $PPID; sleep 5; kill -CONT $PPID; echo over", 0, collector.Silent, true, 0, "over"},
		"kills it":                       {"kill -KILL $PPID; sleep 1000", 128 + 9, collector.Gone, false, 0, ""},
		"kills it, and leaves a process": {"setsid sleep 1000 & sleep 0.2; kill -KILL $PPID; sleep 1000", 128 + 9, collector.Gone, false, 1, ""},
		"crashes it":                     {"kill -ABRT $PPID; sleep 1000", 2, collector.Gone, false, 0, ""},
		"takes its files away":           {"prlimit --pid $PPID --nofile=0:0 && echo taken; echo over", 0, "", true, 0, "taken\r\nover"},
		"looks for its ticket":           {`tr '\0' '\n' </proc/$PPID/cmdline | grep -c "^--ticket=."; echo over`, 0, "", true, 0, "0\r\nover"},
		"prints past it":                 {"setsid sh -c 'echo beside >/proc/self/fd/2'; (echo reopened) >$(tty); echo over", 0, "", true, 0, "beside\r\nreopened\r\nover"},
		"leaves what forks without end":  {"f() { test $1 = 50000 || f $(($1+1)) & }; f 1; sleep 0.2; exit 4", 4, "", true, 0, ""},
		"leaves what forks into sessions of their own": {
			`f='test $1 = 5000 || setsid sh -c "$0" "$0" $(($1+1)) & exit'; sh -c "$f" "$f" 1; sleep 0.2; exit 4`, 4, "", true, 0, "",
		},
		"starves it": {"renice -n 19 $PPID >/dev/null; for i in " + strings.Repeat("x ", testkit.Long(30, 4)) + "; do while :; do :; done & done; sleep 2; echo over", 0, "", true, 0, "over"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var noted chan collector.Note
			p := newPlace(t, func(o *collector.Options) { noted = notes(o) })
			p.hardened()
			mark := newMark(t)
			command := sh(test.script)
			ticket := p.ticket(command)
			c := launchAs(t, nobody, "/", p.wrap(ticket, command), true, mark)
			got := c.wait()
			if got.code != test.code || !strings.Contains(string(got.stdout), test.prints) {
				t.Errorf("%d, %q", got.code, got.stdout)
			}
			if !test.sealed { // nothing waits for what the kernel ends with the terminal
				waitFor(t, func() bool { return len(marked(t, mark)) <= test.left })
			}
			if left := len(marked(t, mark)); left != test.left {
				t.Errorf("%d processes are left", left)
			}
			seal, err := p.folder.Verify(ticket.ID, p.key)
			if test.sealed && (err != nil || seal.End.Left > 0) || !test.sealed && !errors.Is(err, collector.ErrNotSealed) {
				t.Errorf("the recording: %+v, %v", seal, err)
			}
			// Without a session of its own, the hangup may have ended it before.
			if strings.Contains(name, "sessions of their own") && seal != nil && seal.End.Killed == 0 {
				t.Error("nothing was killed at the end")
			}
			if test.sealed && string(p.recording(ticket.ID).output) != string(got.stdout) {
				t.Errorf("the user saw %q, and %q is on record", got.stdout, p.recording(ticket.ID).output)
			}
			if test.note != "" {
				expectNote(t, noted, test.note, patience)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			select {
			case n := <-noted:
				t.Errorf("noted %+v", n)
			case <-ctx.Done():
			}
		})
	}
}
