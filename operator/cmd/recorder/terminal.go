//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/creack/pty"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// terminal is a session on a terminal: an outer one, which the container runtime made, and
// an inner one, on which the command runs. The inner one does what terminals do, so the
// outer one hands on every byte as it is.
type terminal struct {
	session      *session
	master, tty  *os.File
	before       syscall.Termios // of the outer terminal
	writing      sync.Mutex      // of the outer terminal
	copied       chan struct{}
	hangUp       sync.Once
	lastSize     pty.Winsize
	sizing       sync.Mutex
	inputAllowed bool
}

// grabbed says what somebody has done who was faster than this process.
const grabbed = " has this terminal open, and could print what is not recorded"

func openTerminal(s *session) (medium, error) {
	master, tty, err := pty.Open()
	if err == nil {
		master, err = pollable(master)
	}
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	t := &terminal{session: s, master: master, tty: tty, copied: make(chan struct{}), inputAllowed: s.ticket.Terms.Input}
	if err := ioctl(os.Stdout, syscall.TCGETS, &t.before); err != nil {
		return nil, fmt.Errorf("reading the settings of the terminal: %w", err)
	}
	if err := ioctl(t.tty, syscall.TCSETS, &t.before); err != nil {
		return nil, fmt.Errorf("setting the terminal: %w", err)
	}
	raw := t.before
	raw.Iflag &^= syscall.IGNBRK | syscall.BRKINT | syscall.PARMRK | syscall.ISTRIP | syscall.INLCR | syscall.IGNCR | syscall.ICRNL | syscall.IXON
	raw.Oflag &^= syscall.OPOST
	raw.Lflag &^= syscall.ECHO | syscall.ECHONL | syscall.ICANON | syscall.ISIG | syscall.IEXTEN
	raw.Cflag = raw.Cflag&^(syscall.CSIZE|syscall.PARENB) | syscall.CS8
	raw.Cc[syscall.VMIN], raw.Cc[syscall.VTIME] = 1, 0
	if err := ioctl(os.Stdout, syscall.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("setting the outer terminal: %w", err)
	}
	// Nobody but root can open the outer terminal from now on, and print what is not
	// recorded, or read what is typed.
	if err := ioctl[int](os.Stdout, syscall.TIOCEXCL, nil); err != nil {
		return nil, fmt.Errorf("reserving the outer terminal: %w", err)
	}
	if who := holder(); who != "" {
		t.end()
		return nil, errors.New(who + grabbed)
	}
	s.mu.Lock()
	s.hang = func() { t.hangUp.Do(func() { _ = t.master.Close(); _ = t.tty.Close() }) }
	s.says = func(line string) { _ = t.write([]byte("\r\n[admitkit] " + line + "\r\n")) }
	s.mu.Unlock()
	return t, nil
}

func (t *terminal) head() protocol.Head {
	t.lastSize = t.outerSize()
	t.setSize(t.lastSize)
	return protocol.Head{Terminal: true, Size: recorded(t.lastSize), Term: cut(os.Getenv("TERM"), protocol.MaxName)}
}

// pollable returns a file that can be closed while it is read. What package pty opens it
// makes blocking.
func pollable(file *os.File) (*os.File, error) {
	defer func() { _ = file.Close() }()
	fd, _, errno := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_DUPFD_CLOEXEC, 3)
	if errno != 0 {
		return nil, errno
	}
	if err := syscall.SetNonblock(int(fd), true); err != nil {
		return nil, err
	}
	return os.NewFile(fd, file.Name()), nil
}

func isTerminal(file *os.File) bool {
	var settings syscall.Termios
	return ioctl(file, syscall.TCGETS, &settings) == nil
}

func (t *terminal) files() []uintptr {
	return []uintptr{t.tty.Fd(), t.tty.Fd(), t.tty.Fd()}
}

func (t *terminal) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0, Pdeathsig: syscall.SIGKILL}
}

func (t *terminal) begin() {
	go t.copyOut()
	go t.copyIn()
	go func() {
		if who := lateHolder(); who != "" {
			t.session.stop(who + grabbed)
		}
	}()
	t.resize() // which may have changed meanwhile
}

// copyOut copies what the command prints. What cannot be recorded is not shown.
func (t *terminal) copyOut() {
	defer close(t.copied)
	buffer := make([]byte, 32<<10)
	for {
		n, err := t.master.Read(buffer)
		if n > 0 {
			if !t.session.sender.send(protocol.Output, buffer[:n]) {
				t.session.stop("it can no longer be recorded")
				return
			}
			if err := t.write(buffer[:n]); err != nil {
				t.session.hungUp()
				return
			}
		}
		if err != nil { // EIO, when nobody has the inner terminal open any more
			return
		}
	}
}

func (t *terminal) write(text []byte) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	_, err := os.Stdout.Write(text)
	return err
}

// copyIn copies what is typed.
func (t *terminal) copyIn() {
	buffer := make([]byte, 4<<10)
	for {
		n, err := os.Stdin.Read(buffer)
		if n > 0 {
			t.session.sender.touch()
			t.resize() // the signal may be later than the key
			if t.inputAllowed && t.echoes() {
				t.session.sender.send(protocol.Input, buffer[:n])
			}
			if _, err := t.master.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil || n == 0 {
			t.session.hungUp()
			return
		}
	}
}

// echoes reports whether the terminal shows what is typed. It does not while somebody types
// a password.
func (t *terminal) echoes() bool {
	var settings syscall.Termios
	return ioctl(t.master, syscall.TCGETS, &settings) == nil && settings.Lflag&syscall.ECHO != 0
}

// resize gives the inner terminal the size of the outer one. It is recorded first: what the
// command prints for the new size comes after it. The processes in the foreground get
// SIGWINCH.
func (t *terminal) resize() {
	t.sizing.Lock()
	defer t.sizing.Unlock()
	if size := t.outerSize(); size != t.lastSize {
		t.lastSize = size
		t.session.sender.sendJSON(protocol.Resize, recorded(size))
		t.setSize(size)
	}
}

func (t *terminal) outerSize() pty.Winsize {
	var size pty.Winsize
	if ioctl(os.Stdout, syscall.TIOCGWINSZ, &size) != nil {
		return t.lastSize
	}
	return size
}

func (t *terminal) setSize(to pty.Winsize) {
	_ = ioctl(t.master, syscall.TIOCSWINSZ, &to) // it is open, or the session is over
}

func recorded(size pty.Winsize) protocol.Size { return protocol.Size{Cols: size.Cols, Rows: size.Rows} }

func (t *terminal) drain() {
	_ = t.tty.Close() // so that copyOut comes to an end
	<-t.copied
}

// end leaves the outer terminal reserved until the container runtime takes it away, which it does
// once this process has gone: what somebody prints there meanwhile is shown, and not recorded.
func (t *terminal) end() {
	_ = ioctl(os.Stdout, syscall.TCSETS, &t.before) // it may be gone
}
