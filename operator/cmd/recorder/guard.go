//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Of linux/prctl.h.
const (
	prSetDumpable       = 4
	prSetChildSubreaper = 36
)

// guardProcess keeps those who have the same UID, such as the user who is recorded, from
// reading and changing this process, and makes it the parent of every process that the
// session leaves behind.
func guardProcess() error {
	for option, value := range map[uintptr]uintptr{prSetDumpable: 0, prSetChildSubreaper: 1} {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, option, value, 0); errno != 0 {
			return fmt.Errorf("prctl %d: %w", option, errno)
		}
	}
	return nil
}

// ioctl leaves the file as it is: File.Fd would make it blocking.
func ioctl[T any](file *os.File, request uintptr, argument *T) error {
	control, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = control.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(argument))) //nolint:gosec // it is how a kernel is asked
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}

// process is a process as /proc has it.
type process struct{ pid, parent, group int }

// descendants returns the processes that this one has started, and those that they have.
func descendants() []process {
	children := map[int][]process{}
	for _, name := range namesIn("/proc") {
		if p, ok := read(name); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	all := children[os.Getpid()]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all
}

// read reads a process of /proc. Its name can have spaces and parentheses.
func read(name string) (process, bool) {
	pid, err := strconv.Atoi(name)
	if err != nil {
		return process{}, false
	}
	stat, err := os.ReadFile("/proc/" + name + "/stat") //nolint:gosec // the name is a number
	if err != nil {
		return process{}, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 3 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	group, err := strconv.Atoi(fields[2])
	return process{pid, parent, group}, err == nil
}

// letGoTime is how long whoever made the terminal of this process may have it open, too.
const letGoTime = 5 * time.Second

// holder returns who else has the standard output open, "" if there is nobody: a process of
// another session that was faster may print there what is not recorded. It cannot see those of
// another user, nor those that hide as this one does.
func holder() string {
	own, name, err := outer()
	if err != nil {
		return ""
	}
	for deadline := time.Now().Add(letGoTime); ; time.Sleep(20 * time.Millisecond) {
		found := holderOf(own, name)
		if found == "" || time.Now().After(deadline) {
			return found
		}
	}
}

// lateTimes are when lateHolder looks: an open may be under way for as long, on a machine that is busy.
var lateTimes = []time.Duration{100 * time.Millisecond, 2 * time.Second}

// lateHolder returns who has turned up since holder found nobody: an open that was let in before
// the terminal was reserved shows its file a little later. It looks twice at whom it finds: who has
// just been started has the files of this process for an instant.
func lateHolder() string {
	own, name, err := outer()
	if err != nil {
		return ""
	}
	for _, after := range lateTimes {
		time.Sleep(after)
		if holderOf(own, name) == "" {
			continue
		}
		time.Sleep(20 * time.Millisecond)
		if found := holderOf(own, name); found != "" {
			return found
		}
	}
	return ""
}

// outer returns the terminal that the container runtime made, and its name.
func outer() (own os.FileInfo, name string, err error) {
	if own, err = os.Stdout.Stat(); err == nil {
		name, err = os.Readlink("/proc/self/fd/1")
	}
	return own, name, err
}

// holderOf returns another process that has a file open under a name. It cannot see all of them.
func holderOf(file os.FileInfo, name string) string {
	self := strconv.Itoa(os.Getpid())
	for _, pid := range namesIn("/proc") {
		if pid[0] < '0' || pid[0] > '9' || pid == self {
			continue
		}
		folder := "/proc/" + pid + "/fd/"
		for _, fd := range namesIn(folder) {
			if to, err := os.Readlink(folder + fd); err != nil || to != name {
				continue
			}
			if info, err := os.Stat(folder + fd); err == nil && os.SameFile(info, file) {
				return "process " + pid
			}
		}
	}
	return ""
}

// namesIn lists a folder, as far as it may be read.
func namesIn(path string) []string {
	folder, err := os.Open(path) //nolint:gosec // a folder of /proc
	if err != nil {
		return nil
	}
	defer func() { _ = folder.Close() }()
	names, _ := folder.Readdirnames(-1) // a process ends meanwhile
	return names
}

const (
	// killTime is how long processes may take to die.
	killTime = 5 * time.Second
	// deniedTime is how long those of another user may take to end, once they have no terminal.
	deniedTime = time.Second
)

// killRest kills everything that the session has left. It returns how many processes it
// killed, and how many are left nevertheless: at least one, if they are another user's or
// cannot be found in time. It calls denied when it finds some that are another user's.
func killRest(denied func()) (killed, left int) {
	seen, own := map[int]bool{}, syscall.Getpgrp()
	deadline, told := time.Now().Add(killTime), false
	for ; ; time.Sleep(time.Millisecond) {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		for pid > 0 || err == syscall.EINTR {
			pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
		if err == syscall.ECHILD {
			return len(seen), 0
		}
		all, foreign := descendants(), 0
		for _, each := range all {
			switch syscall.Kill(each.pid, syscall.SIGKILL) {
			case nil:
				seen[each.pid] = true
			case syscall.EPERM:
				foreign++
			}
			// Who goes from process to process is another one by now, but of the same group. All
			// of a group are of this session.
			if each.group != own && each.group > 1 {
				_ = syscall.Kill(-each.group, syscall.SIGKILL) // or it is gone
			}
		}
		if foreign == len(all) && foreign > 0 && !told {
			denied()
			deadline, told = time.Now().Add(deniedTime), true
		}
		if time.Now().After(deadline) {
			// There are children, whether or not /proc has shown any: it cannot be read without a
			// file to open, and who goes from process to process is gone before it is read.
			return len(seen), max(len(all), 1)
		}
	}
}
