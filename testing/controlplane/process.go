package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// process is a program of the control plane that envtest does not run.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *processLog
	// done is closed when the process has ended.
	done chan struct{}
}

func startProcess(name, path, dir string, log *processLog, args ...string) (*process, error) {
	p := &process{name: name, log: log, cmd: exec.Command(path, args...), done: make(chan struct{})} //nolint:gosec // the caller chose the binary
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A command that kwok runs for `kubectl exec` may keep kwok's output open.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState says how it ended
	}()
	return p, nil
}

// waitReady waits until check returns nil. It fails if the process ends first.
func (p *process) waitReady(ctx context.Context, check func(context.Context) error) error {
	last := errors.New("not checked yet")
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-p.done:
			return false, fmt.Errorf("ended with %s", p.cmd.ProcessState)
		default:
		}
		last = check(ctx)
		return last == nil, nil
	})
	if wait.Interrupted(err) {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return p.log.explain(p.name, err)
}

// output receives the logs of all processes.
type output struct {
	mu sync.Mutex
	to io.Writer
}

// close discards later writes, so that the caller of Stop can read its writer: the
// end of a killed process's log may still be on its way.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = io.Discard
}

// processLog passes on the log of a process and keeps the end of it, for the error
// if the process does not start.
type processLog struct {
	*output
	end []byte
}

const keptLog = 4096

func (l *processLog) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, text...)
	l.end = l.end[max(0, len(l.end)-keptLog):]
	return l.to.Write(text)
}

// explain adds the name of the process and the end of its log to err.
func (l *processLog) explain(name string, err error) error {
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.end) == 0 {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %w; its log ends with:\n%s", name, err, strings.TrimSpace(string(l.end)))
}
