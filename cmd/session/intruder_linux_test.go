package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/admitkit/admitkit/extension/session/collector"
	"github.com/admitkit/admitkit/extension/session/protocol"
)

// intruderTarget is the variable by which this program tries what an intruder would, on the
// process that it names.
const intruderTarget = "ADMITKIT_INTRUDER_TARGET"

// intrude tries to get at a process, and at a terminal, and prints what became of each attempt.
func intrude(target, terminal string) {
	runtime.LockOSThread() // that traces
	pid, err := strconv.Atoi(target)
	if err != nil {
		panic(err)
	}
	try := func(what string, err error) {
		var errno syscall.Errno
		switch {
		case err == nil:
			fmt.Printf("%s: done\n", what)
		case errors.As(err, &errno):
			fmt.Printf("%s: %s\n", what, unix.ErrnoName(errno))
		default:
			fmt.Printf("%s: %v\n", what, err)
		}
	}
	open := func(path string, flags int) error {
		file, err := os.OpenFile(path, flags|syscall.O_NOCTTY, 0) //nolint:gosec // it is meant
		if err == nil {
			err = file.Close()
		}
		return err
	}
	of := func(name string) string { return filepath.Join("/proc", target, name) }
	for _, name := range []string{"environ", "maps", "auxv", "fd", "fd/0"} {
		try(name, open(of(name), os.O_RDONLY))
	}
	try("mem", open(of("mem"), os.O_RDWR))
	_, err = os.Readlink(of("exe"))
	try("exe", err)
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		_, err = unix.PidfdGetfd(fd, 0, 0)
	}
	try("pidfd_getfd", err)
	var into [1]byte
	_, err = unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &into[0], Len: 1}}, []unix.RemoteIovec{{Base: 1, Len: 1}}, 0)
	if errors.Is(err, unix.EFAULT) { // there is nothing at that address, as it may find out
		err = nil
	}
	try("process_vm_readv", err)
	if err = unix.PtraceAttach(pid); err == nil {
		_, err = unix.Wait4(pid, nil, 0, nil)
		err = errors.Join(err, unix.PtraceDetach(pid))
	}
	try("ptrace", err)
	try("terminal", open(terminal, os.O_WRONLY))
}

// anyoneElse is a user without rights, nil if that is who runs the tests.
func anyoneElse() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

func TestAUserWithTheRecordersUIDCanKillItAndNothingElse(t *testing.T) {
	p := newPlace(t)
	p.expose()
	if err := os.Chmod(p.path, 0o111); err != nil { // as it is in a container
		t.Fatal(err)
	}
	program := filepath.Join(publicDir(t), "intruder")
	content, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.WriteFile(program, content, 0o755)); err != nil { //nolint:gosec // another user runs it
		t.Fatal(err)
	}
	// Who is recorded runs it, on a process and on the terminal that they are told.
	script := func(target string) string {
		return `echo ready; read outer; ` + intruderTarget + `=` + target + ` ` + program + ` "$outer"; echo done; read x; `
	}

	command, mark := sh(script("$PPID")+"kill -9 $PPID"), "ADMITKIT_MARK="+protocol.NewID()
	ticket := p.ticket(command)
	c := launchAs(t, anyoneElse(), "/", p.wrap(ticket, command), true, mark)
	var number uint32
	err = ioctl(c.terminal, syscall.TIOCGPTN, &number)
	outer := fmt.Sprintf("/dev/pts/%d", number)
	if as := anyoneElse(); err == nil && as != nil {
		err = os.Chown(outer, int(as.Uid), int(as.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
	refused := c.gained(outer)
	for what, want := range map[string]string{
		"environ": "EACCES", "maps": "EACCES", "auxv": "EACCES", "fd": "EACCES", "fd/0": "EACCES", "mem": "EACCES", "exe": "EACCES",
		"pidfd_getfd": "EPERM", "process_vm_readv": "EPERM", "ptrace": "EPERM", "terminal": "EBUSY",
	} {
		if got := refused[what]; got != want {
			t.Errorf("%s: %q, want %s", what, got, want)
		}
	}
	c.send("\n")
	if got := c.wait(); got.code != 128+9 {
		t.Errorf("killed, it ends with %+v", got)
	}
	waitFor(t, func() bool { return len(marked(t, mark)) == 0 })
	if _, err := p.folder.Verify(ticket.ID, p.key); !errors.Is(err, collector.ErrNotSealed) {
		t.Errorf("the recording: %v", err)
	}

	// A process that does not guard itself lets the same user do all of it.
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); !errors.Is(err, fs.ErrNotExist) && strings.TrimSpace(string(scope)) != "0" {
		t.Logf("this kernel lets nobody trace a process that is not a child: ptrace_scope is %q", scope)
		return
	}
	c = launchAs(t, anyoneElse(), "/", sh("sleep 1000 & target=$!; "+script("$target")+"kill $target"), false)
	for what, got := range c.gained(os.DevNull) {
		if got != "done" {
			t.Errorf("of a process without guards, %s: %q", what, got)
		}
	}
	c.closeInput()
	c.wait()
}

// gained tells the intruder the terminal, and returns what became of each attempt.
func (c *client) gained(terminal string) map[string]string {
	c.t.Helper()
	c.expect("ready")
	c.send(terminal + "\n")
	c.expect("\ndone")
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]string{}
	for line := range strings.Lines(c.stdout.String()) {
		if what, result, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			all[what] = result
		}
	}
	return all
}
