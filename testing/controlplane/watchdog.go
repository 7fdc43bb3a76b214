package controlplane

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const killTimeout = 10 * time.Second

//go:embed watchdog.sh
var watchdogScript string

// watchdog owns the folder of a control plane and outlives this process for as
// long as it takes to kill what the process started. t.Cleanup cannot do that:
// a panic in another goroutine, `go test -timeout` and SIGKILL all skip it.
//
// It is a shell that reads from a pipe whose other end only this process holds
// (os.Pipe closes it on exec, so no child inherits it) and acts when the pipe
// closes. It is in a process group of its own, so that Ctrl-C on `go test` does
// not end it first.
type watchdog struct {
	dir    string
	pipe   *os.File
	cmd    *exec.Cmd
	stderr bytes.Buffer

	closeOnce sync.Once
	closeErr  error
}

func startWatchdog() (*watchdog, error) {
	dir, err := os.MkdirTemp("", "admitkit-controlplane-")
	if err != nil {
		return nil, err
	}
	w := &watchdog{dir: dir}
	if err := w.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", err), os.RemoveAll(dir))
	}
	return w, nil
}

func (w *watchdog) start() error {
	for _, folder := range []string{"apiserver", "bin", "home", "kubectl", "pids"} {
		if err := os.Mkdir(filepath.Join(w.dir, folder), 0o700); err != nil {
			return err
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	w.pipe = write
	w.cmd = exec.Command("/bin/sh", "-c", watchdogScript, "admitkit-watchdog", w.dir) //nolint:gosec // our own script, our own folder
	w.cmd.Stdin = read
	w.cmd.Stderr = &w.stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = w.cmd.Start()
	if closeErr := read.Close(); err == nil {
		err = closeErr
	}
	return err
}

// wrapper is a program that notes its process for the watchdog and becomes
// another. The order (note, then look for `closing`) is the reverse of the
// watchdog's (write `closing`, then read the notes): one of them sees the other.
//
// The environment is emptied because all of these programs read it: etcd takes
// ETCD_* for flags, and kwok would load ~/.kwok/kwok.yaml. --help is what
// envtest asks which flags there are, in a process that ends at once.
const wrapper = `#!/bin/sh
if [ "$1" != --help ]; then
	set -C # a second process of that name would take the place of the first
	echo $$ >%[1]s || exit 1
	[ -e %[2]s ] && exit 1
fi
exec env -i PATH="$PATH" HOME=%[3]s %[4]s "$@"
`

// wrap returns the path of a program that runs binary in the watchdog's sight.
// It has to lead a process group: the group is what is killed.
func (w *watchdog) wrap(name, binary string) (string, error) {
	path := filepath.Join(w.dir, "bin", name)
	script := fmt.Sprintf(wrapper, quote(w.pidFile(name)), quote(filepath.Join(w.dir, "closing")), quote(w.home()), quote(binary))
	// A child forked by another goroutine while the file is open for writing would
	// hold it open too, and exec of it would fail with "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		return "", err
	}
	return path, nil
}

func quote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func (w *watchdog) pidFile(name string) string { return filepath.Join(w.dir, "pids", name) }

func (w *watchdog) home() string { return filepath.Join(w.dir, "home") }

// started reports whether a process was started and not killed since.
func (w *watchdog) started(name string) bool {
	_, err := os.Stat(w.pidFile(name))
	return err == nil
}

// kill kills one process, with its children, and returns when it is gone. A
// process that does not run is no error.
func (w *watchdog) kill(name string) error {
	text, err := os.ReadFile(w.pidFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	// ESRCH: it has ended by itself, and was waited for.
	err = syscall.Kill(-pid, syscall.SIGKILL)
	for start := time.Now(); err == nil; err = syscall.Kill(pid, 0) {
		if time.Since(start) > killTimeout {
			return fmt.Errorf("kill %s: process %d is still there after %s", name, pid, killTimeout)
		}
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	return os.Remove(w.pidFile(name))
}

// close has the watchdog kill what still runs and remove the folder, and waits
// until it has done so.
func (w *watchdog) close() error {
	w.closeOnce.Do(func() {
		err := errors.Join(w.pipe.Close(), w.cmd.Wait())
		if err != nil {
			err = fmt.Errorf("watchdog: %w\n%s", err, w.stderr.Bytes())
		}
		// The folder is gone unless someone killed the watchdog.
		w.closeErr = errors.Join(err, os.RemoveAll(w.dir))
	})
	return w.closeErr
}
