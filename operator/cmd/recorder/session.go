//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// session is the one that this process records.
type session struct {
	command []string
	ticket  *protocol.Ticket
	sender  *sender

	mu     sync.Mutex
	child  int    // the process that the user started, 0 before and after
	reason string // for which the session ends early
	// over is closed when the session ends early, and denied says that its command could not
	// be killed.
	over   chan struct{}
	denied bool
	// hang takes the terminal or the pipes away, and says writes a line to the user.
	hang func()
	says func(line string)
	// limits end the session. A timer is armed for each.
	limits limiter
}

// medium is what the command has as its standard streams: a terminal or pipes.
type medium interface {
	// head is what the recording begins with.
	head() protocol.Head
	// files are the standard streams of the command.
	files() []uintptr
	// attributes say how the command starts.
	attributes() *syscall.SysProcAttr
	// begin starts to copy, once the command has started.
	begin()
	// resize is called when the outer terminal has another size.
	resize()
	// drain waits until what the command has written is read, when it has ended.
	drain()
	// end restores the settings that were there before.
	end()
}

func newSession(text string, ticket *protocol.Ticket, command []string) (*session, error) {
	if protocol.Sum(command) != ticket.Command {
		return nil, errors.New("the ticket is for another command")
	}
	s := &session{command: command, ticket: ticket, sender: newSender(text, &ticket.Terms), over: make(chan struct{}), hang: func() {}}
	s.says = func(line string) { fmt.Fprintln(os.Stderr, "admitkit:", line) }
	s.sender.stop, s.sender.say, s.sender.limit = s.stop, s.say, s.limit
	return s, nil
}

// run returns the exit code of the command.
func (s *session) run() (int, error) {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, forwarded...)
	medium, err := s.open() // first of all: the outer terminal must not echo
	if err != nil {
		return exitRefused, err
	}
	if err := s.sender.start(); err != nil {
		medium.end()
		return exitRefused, err
	}
	head := medium.head()
	head.Time, head.Command = s.sender.began.UTC(), protocol.Shorten(s.command)
	s.sender.sendJSON(protocol.Begin, head)
	s.begin()
	end, err := s.start(medium, signals)
	s.limits.end()
	medium.end()
	s.mu.Lock()
	end.Reason = s.reason
	s.mu.Unlock()
	s.sender.sendJSON(protocol.Exit, end)
	s.sender.finish()
	if end.Reason != "" {
		err = errors.New("the session was ended: " + end.Reason)
	}
	return end.Code, err
}

// open makes what the command runs on: a terminal if this process has one.
func (s *session) open() (medium, error) {
	if isTerminal(os.Stdout) {
		return openTerminal(s)
	}
	return openPipes(s)
}

// start runs the command until it and all that it has started have ended.
func (s *session) start(m medium, signals <-chan os.Signal) (protocol.End, error) {
	path, err := find(s.command[0])
	if err != nil {
		code := 127
		if errors.Is(err, fs.ErrPermission) {
			code = 126
		}
		return protocol.End{Code: code}, err
	}
	child, err := syscall.ForkExec(path, s.command, &syscall.ProcAttr{Env: os.Environ(), Files: m.files(), Sys: m.attributes()}) //nolint:gosec // this is what it is for
	if err != nil {
		return protocol.End{Code: 126}, fmt.Errorf("exec: %q: %w", s.command[0], err)
	}
	s.mu.Lock()
	s.child = child
	stopped := s.reason != ""
	s.mu.Unlock()
	if stopped {
		_ = syscall.Kill(child, syscall.SIGKILL) // it is there until it is waited for
	}
	go s.forward(signals, m)
	m.begin()
	end := s.await(child)
	end.Killed, end.Left = killRest(s.hangs)
	s.drain(m)
	return end, nil
}

// await waits for the command. One that has to end, and has become another user's, may go on
// for ever: it loses its terminal, and is left.
func (s *session) await(child int) protocol.End {
	ended := make(chan protocol.End, 1)
	go func() { ended <- s.wait(child) }()
	select {
	case end := <-ended:
		return end
	case <-s.over:
	}
	s.mu.Lock()
	left := killTime
	if s.denied {
		left = deniedTime
	}
	s.mu.Unlock()
	select {
	case end := <-ended:
		return end
	case <-time.After(left):
	}
	s.hangs()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child = 0
	return protocol.End{Code: 128 + int(syscall.SIGKILL)}
}

// drain copies what the command has written. A session that had to end does not wait for
// whoever should read it.
func (s *session) drain(m medium) {
	s.mu.Lock()
	early := s.reason != ""
	s.mu.Unlock()
	if !early {
		m.drain()
		return
	}
	within(deniedTime, m.drain)
}

// within runs something, and does not wait for it for longer than that.
func within(most time.Duration, run func()) {
	done := make(chan struct{})
	go func() { defer close(done); run() }()
	select {
	case <-done:
	case <-time.After(most):
	}
}

// forwarded are the signals that the command gets in place of this process. A write to a
// closed pipe must not end this process, so it catches that signal, too.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTERM,
	syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGWINCH, syscall.SIGPIPE,
}

func (s *session) forward(signals <-chan os.Signal, m medium) {
	for each := range signals {
		switch each {
		case syscall.SIGPIPE:
		case syscall.SIGWINCH:
			m.resize()
		default:
			_ = s.kill(each.(syscall.Signal)) // it may have ended
		}
	}
}

// kill sends the command a signal, if it still runs. It may have become another user's.
func (s *session) kill(what syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child == 0 {
		return nil
	}
	return syscall.Kill(s.child, what)
}

// wait waits for the command, and for whatever became an orphan meanwhile.
func (s *session) wait(child int) protocol.End {
	for {
		var status syscall.WaitStatus
		var info syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, 0, &info)
		switch {
		case err == syscall.EINTR:
		case err != nil: // not while the child is there
			return protocol.End{Code: 255}
		case pid == child:
			s.mu.Lock()
			s.child = 0
			s.mu.Unlock()
			if status.Signaled() {
				return protocol.End{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
			}
			return protocol.End{Code: status.ExitStatus()}
		}
	}
}

// say shows a line to the user.
func (s *session) say(line string) {
	s.mu.Lock()
	says := s.says
	s.mu.Unlock()
	says(line)
}

// stop ends the session.
func (s *session) stop(reason string) {
	denied := errors.Is(s.kill(syscall.SIGKILL), syscall.EPERM)
	if denied {
		s.hangs()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == "" {
		s.reason, s.denied = reason, denied
		close(s.over)
	}
}

// hangs takes the terminal or the pipes away.
func (s *session) hangs() {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	hang()
}

// hangupTime is how long processes may go on after their terminal is gone.
const hangupTime = 10 * time.Second

// hungUp is called when the outer terminal is gone. The command gets SIGHUP, and ends.
func (s *session) hungUp() {
	s.hangs()
	time.AfterFunc(hangupTime, func() { s.stop(protocol.ReasonHangup) })
}

// find finds a program as the container runtime does.
func find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	var denied error
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join("/", folder, name)
		if !filepath.IsAbs(folder) {
			path = filepath.Join(folder, name)
		}
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", fmt.Errorf("exec: %q: %w", name, denied)
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

func executable(path string) error {
	info, err := os.Stat(path) //nolint:gosec // the command is the user's, and so is the process
	switch {
	case err != nil:
		return fmt.Errorf("exec: %w", err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("exec: %q: %w", path, fs.ErrPermission)
	}
	return nil
}

// cut cuts a text to a number of bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
