//go:build linux

// Command intruder is what a user whose session is recorded may run in the container, to get
// at the recorder. It has the recorder's UID. For each thing that it tries, it prints a line
//
//	NAME: GAINED what
//	NAME: refused: why
//
//	intruder touch PID               reads, changes and traces the recorder
//	intruder terminals               opens the terminals of other processes
//	intruder grab DURATION           opens terminals as soon as they are there
//	intruder replay PID [TICKET]...  presents tickets and tokens again
//	intruder limit PID               takes all open files away from it
//	intruder chain DURATION          goes from process to process, faster than it is found
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "intruder:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "terminals" {
		terminals()
		return nil
	}
	if len(args) < 2 {
		return errors.New("see the package's comment")
	}
	if args[0] == "chain" || args[0] == "grab" {
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		if args[0] == "grab" {
			grab(d)
			return nil
		}
		return chain(d)
	}
	pid, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "touch":
		touch(pid)
	case "replay":
		return replay(pid, args[2:])
	case "limit":
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil)
	default:
		return fmt.Errorf("%q: see the package's comment", args[0])
	}
	return nil
}

// report prints what became of an attempt.
func report(name string, try func() (string, error)) {
	what, err := try()
	if err != nil {
		fmt.Printf("%s: refused: %v\n", name, err)
		return
	}
	fmt.Printf("%s: GAINED %s\n", name, what)
}

// touch tries what needs no more than the UID of another process.
func touch(pid int) {
	of := func(name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }
	for _, name := range []string{"environ", "maps", "auxv", "mem", "stack", "syscall", "pagemap"} {
		report("to read "+name, func() (string, error) {
			file, err := os.Open(of(name))
			if err != nil {
				return "", err
			}
			defer func() { _ = file.Close() }()
			_, err = file.Read(make([]byte, 8))
			return "it", err
		})
	}
	for _, name := range []string{"mem", "oom_score_adj", "fd/0", "fd/1"} {
		report("to write "+name, func() (string, error) { return "it", opened(of(name), os.O_WRONLY) })
	}
	for _, name := range []string{"exe", "cwd", "root", "fd/1"} {
		report("to follow "+name, func() (string, error) { return os.Readlink(of(name)) })
	}
	report("to copy its program", func() (string, error) { return "it", opened("/.admitkit/recorder", os.O_RDONLY) })
	report("to attach to it", func() (string, error) { return "it", unix.PtraceAttach(pid) })
	report("to seize it", func() (string, error) { return "it", unix.PtraceSeize(pid) })
	report("to read its memory", func() (string, error) {
		local, remote := make([]byte, 8), []unix.RemoteIovec{{Base: 0x400000, Len: 8}}
		_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &local[0], Len: 8}}, remote, 0)
		return "it", err
	})
	report("to take its terminal", func() (string, error) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return "", err
		}
		_, err = unix.PidfdGetfd(fd, 0, 0)
		return "it", err
	})
}

func opened(path string, flags int) error {
	file, err := os.OpenFile(path, flags|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err == nil {
		err = file.Close()
	}
	return err
}

// chain goes from process to process until the time is over. The program has no threads in
// its children, so they may do nothing but ask the kernel.
func chain(d time.Duration) error {
	if _, err := unix.Setsid(); err != nil {
		return err
	}
	for _, fd := range []int{0, 1, 2} {
		_ = unix.Close(fd)
	}
	var now, pause unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	end := now.Nano() + d.Nanoseconds()
	pause.Nsec = int64(100 * time.Microsecond)
	forkUntil(end, &now, &pause)
	return nil
}
