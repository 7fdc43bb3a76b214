//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// pipes is a session without a terminal. The command has pipes, whose other ends are this
// process's, unless its stream is a device such as /dev/null.
type pipes struct {
	session *session
	childs  [3]*os.File
	ours    [3]*os.File // nil where the command has the stream itself
	in      *summer     // of the input, if it is a pipe
	out     sync.WaitGroup
}

var streams = [3]string{"stdin", "stdout", "stderr"}

func openPipes(s *session) (medium, error) {
	p := &pipes{session: s}
	for i, outer := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		info, err := outer.Stat()
		if err != nil || info.Mode()&os.ModeCharDevice != 0 {
			p.childs[i] = outer
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("opening a pipe: %w", err)
		}
		p.childs[i], p.ours[i] = w, r
		if i == 0 {
			p.childs[i], p.ours[i] = r, w
		}
		enlarge(r)
	}
	s.mu.Lock()
	s.hang = p.close
	s.mu.Unlock()
	return p, nil
}

// close takes the pipes away from the command: it reads the end, and its writes fail.
func (p *pipes) close() {
	for _, each := range p.ours {
		if each != nil {
			_ = each.Close() // copy may have done so
		}
	}
}

const (
	fSetPipeSize = 1031
	pipeSize     = 256 << 10
)

// enlarge makes fewer and larger pieces of what goes through a pipe.
func enlarge(pipe *os.File) {
	control, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = control.Control(func(fd uintptr) { // the pipe is open
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, fSetPipeSize, pipeSize) // else it stays as it is
	})
}

func (p *pipes) head() protocol.Head { return protocol.Head{} }

func (p *pipes) files() []uintptr {
	return []uintptr{p.childs[0].Fd(), p.childs[1].Fd(), p.childs[2].Fd()}
}

func (p *pipes) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

func (p *pipes) begin() {
	for i, ours := range p.ours {
		if ours == nil {
			continue
		}
		_ = p.childs[i].Close() // the command has it now
		sum := newSummer(p.session, streams[i])
		switch i {
		case 0:
			p.in = sum
			go p.copy(sum, os.Stdin, ours)
		case 1:
			p.out.Go(func() { p.copy(sum, ours, os.Stdout) })
		default:
			p.out.Go(func() { p.copy(sum, ours, os.Stderr) })
		}
	}
}

// copy copies a stream to its end, and records what it was.
func (p *pipes) copy(sum *summer, from, to *os.File) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if failed := sum.copy(buffer[:n], to); failed != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	// Each end is closed as soon as the other is: a closed pipe tells the other side. What
	// this process has to say goes to stderr.
	_ = from.Close()
	if to != os.Stderr {
		_ = to.Close()
	}
	sum.end()
}

func (p *pipes) resize() {}
func (p *pipes) drain()  { p.out.Wait() }

// end ends the sum of the input. Whoever writes it may not have closed it.
func (p *pipes) end() {
	if p.in != nil {
		p.in.end()
	}
}

// summer makes the sum of a stream while the stream is copied.
type summer struct {
	session *session
	pieces  chan []byte
	done    chan struct{}

	mu    sync.Mutex
	of    protocol.StreamSum
	ended bool
}

func newSummer(s *session, name string) *summer {
	sum := &summer{session: s, of: protocol.StreamSum{Name: name}, pieces: make(chan []byte), done: make(chan struct{}, 1)}
	go sum.run()
	return sum
}

func (s *summer) run() {
	defer close(s.done)
	hash := sha256.New()
	archive := newArchive(s.of.Name, func(f protocol.FileSum) { s.session.sender.sendJSON(protocol.File, f) })
	for piece := range s.pieces {
		_, _ = hash.Write(piece) // never fails
		archive.add(piece)
		s.done <- struct{}{}
	}
	archive.end()
	s.of.SHA256 = hex.EncodeToString(hash.Sum(nil))
	s.session.sender.sendJSON(protocol.Stream, s.of)
}

// copy writes a piece while it is added to the sum.
func (s *summer) copy(piece []byte, to *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return os.ErrClosed
	}
	s.session.sender.touch()
	s.of.Bytes += int64(len(piece))
	s.pieces <- piece
	_, err := to.Write(piece)
	<-s.done
	return err
}

func (s *summer) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended = true
		close(s.pieces)
		<-s.done
	}
}
