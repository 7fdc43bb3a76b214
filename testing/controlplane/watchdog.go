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

// watchdog owns the folder of a control plane and outlives this process until it
// has killed what the process started. t.Cleanup cannot do that: a panic in another
// goroutine, `go test -timeout` and SIGKILL all skip it.
//
// The watchdog is a shell that reads from a pipe and acts when the pipe closes.
// Only this process has the other end: os.Pipe closes it on exec, so no child
// inherits it. The shell has its own process group, so that Ctrl-C on `go test`
// does not end it first.
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
	w.cmd = exec.Command("/bin/sh", "-c", watchdogScript, "admitkit-watchdog", w.dir) //nolint:gosec // the script and the folder are ours
	w.cmd.Stdin = read
	w.cmd.Stderr = &w.stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = w.cmd.Start()
	if closeErr := read.Close(); err == nil {
		err = closeErr
	}
	return err
}

// wrapper is a script that writes its process ID for the watchdog and then becomes
// the program. It writes the ID, then looks for the file `closing`. The watchdog
// does the reverse: it writes `closing`, then reads the IDs. So at least one of the
// two sees the other.
//
// The script empties the environment because the programs read it: etcd takes
// ETCD_* for flags, and kwok would load ~/.kwok/kwok.yaml. envtest runs a program
// with --help, to learn its flags, in a process that ends at once.
const wrapper = `#!/bin/sh
if [ "$1" != --help ]; then
	set -C # a second process of this name must not overwrite the first one's ID
	echo $$ >%[1]s || exit 1
	[ -e %[2]s ] && exit 1
fi
exec env -i PATH="$PATH" HOME=%[3]s %[4]s "$@"
`

// wrap returns the path of a script that runs the binary under the watchdog. Start
// it as the leader of a process group: the watchdog kills the whole group.
func (w *watchdog) wrap(name, binary string) (string, error) {
	path := filepath.Join(w.dir, "bin", name)
	script := fmt.Sprintf(wrapper, quote(w.pidFile(name)), quote(filepath.Join(w.dir, "closing")), quote(w.home()), quote(binary))
	// If another goroutine forks a child while this file is open for writing, the
	// child has it open, too, and running it fails with "text file busy".
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil { //nolint:gosec // it is a script to run
		return "", err
	}
	return path, nil
}

func quote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func (w *watchdog) pidFile(name string) string { return filepath.Join(w.dir, "pids", name) }

func (w *watchdog) home() string { return filepath.Join(w.dir, "home") }

// started reports whether a process was started and has not been killed since.
func (w *watchdog) started(name string) bool {
	_, err := os.Stat(w.pidFile(name))
	return err == nil
}

// kill kills one process and its children, and returns when the process is gone. If
// it does not run, kill does nothing.
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
	// ESRCH: the process has already ended.
	err = syscall.Kill(-pid, syscall.SIGKILL)
	for start := time.Now(); err == nil; err = syscall.Kill(pid, 0) {
		if time.Since(start) > killTimeout {
			return fmt.Errorf("kill %s: process %d still runs after %s", name, pid, killTimeout)
		}
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	return os.Remove(w.pidFile(name))
}

// close makes the watchdog kill the processes and remove the folder, and waits for
// it.
func (w *watchdog) close() error {
	w.closeOnce.Do(func() {
		err := errors.Join(w.pipe.Close(), w.cmd.Wait())
		if err != nil {
			err = fmt.Errorf("watchdog: %w\n%s", err, w.stderr.Bytes())
		}
		// The folder is already gone, unless someone killed the watchdog.
		w.closeErr = errors.Join(err, os.RemoveAll(w.dir))
	})
	return w.closeErr
}
