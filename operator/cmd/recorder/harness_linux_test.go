package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// built is the folder of the recorder, once that is needed.
var built string

// recorder is the program as it is in a container.
var recorder = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "recorder-")
	if err != nil {
		return "", err
	}
	built = folder
	path := filepath.Join(folder, "recorder")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	return path, err
})

func TestMain(m *testing.M) {
	if told, is := os.LookupEnv(asCollector); is {
		if err := collect(told); err != nil {
			log.Fatal(err)
		}
		return
	}
	if _, is := os.LookupEnv(asAttacker); is {
		attack()
		return
	}
	if told, is := os.LookupEnv(asThief); is {
		steal(told)
		return
	}
	// A shell that starts tests in the background has them ignore what the terminals of the
	// sessions send. Whoever catches a signal does not hand that on.
	for _, each := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(each) {
			signal.Notify(make(chan os.Signal, 1), each)
		}
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// place is where sessions are recorded: a real collector on a real port.
type place struct {
	*collector.Collector
	t      *testing.T
	key    protocol.Key
	folder collector.Folder
	server *httptest.Server
	token  string
	path   string
}

const podUID = "6e0c6c0e-0c6e-4a6c-8b5e-000000000001"

func newPlace(t *testing.T, change ...func(*collector.Options)) *place {
	t.Helper()
	path, err := recorder()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, folder: collector.Folder(t.TempDir()), path: path}
	p.key, _ = theKey()
	options := collector.Options{Key: theKey, Storage: p.folder, Identify: identify, Settle: 1}
	for _, each := range change {
		each(&options)
	}
	p.Collector = collector.New(options)
	p.server = newServer(p.Collector)
	t.Cleanup(p.server.Close)
	p.token = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(p.token, []byte("the token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// theKey returns the key of all tickets.
func theKey() (protocol.Key, error) { return protocol.Key{Current: bytes.Repeat([]byte("k"), 32)}, nil }

// identify knows the one token.
func identify(_ context.Context, token string) (string, error) {
	if token != "the token" {
		return "", collector.ErrToken
	}
	return podUID, nil
}

// newServer serves a collector. The certificate is the same for all.
func newServer(of *collector.Collector) *httptest.Server {
	server := httptest.NewUnstartedServer(of)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that a test cuts
	server.StartTLS()
	return server
}

// expose gives the recorder and the token to every user.
func (p *place) expose() {
	p.t.Helper()
	folder := publicDir(p.t)
	for name, path := range map[string]*string{"recorder": &p.path, "token": &p.token} {
		content, err := os.ReadFile(*path)
		*path = filepath.Join(folder, name)
		if err := errors.Join(err, writeProgram(*path, content)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// writeProgram writes a file that can be run at once. Meanwhile nothing forks: a child would
// have the file open for writing until it runs something else, and nobody can run it then.
func writeProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}

// ticket returns a ticket for a command.
func (p *place) ticket(command []string, change ...func(*protocol.Ticket)) *protocol.Ticket {
	ticket := &protocol.Ticket{
		ID: protocol.NewID(), Namespace: "team", Pod: "web", PodUID: podUID, Container: "main", User: "alice",
		Command: protocol.Sum(command), Shown: protocol.SumShown(command), Expires: time.Now().Add(protocol.Life).Unix(),
		Terms: protocol.Terms{
			Collectors: []string{p.server.Listener.Addr().String()}, ServerName: "example.com",
			CA: [][]byte{p.server.Certificate().Raw}, TokenFile: p.token, Closed: true, Wait: 10,
		},
	}
	for _, each := range change {
		each(ticket)
	}
	return ticket
}

// wrap returns the command with the recorder before it.
func (p *place) wrap(ticket *protocol.Ticket, command []string) []string {
	p.t.Helper()
	text, err := p.key.Sign(ticket)
	if err != nil {
		p.t.Fatal(err)
	}
	wrapped := protocol.Wrap(text, command)
	wrapped[0] = p.path
	return wrapped
}

// client is who runs a command, as kubectl does through the container runtime.
type client struct {
	t   *testing.T
	cmd *exec.Cmd
	// The terminal, or the pipes.
	terminal *os.File
	stdin    *os.File
	stdoutR  *os.File
	size     pty.Winsize

	mu             sync.Mutex
	changed        *sync.Cond
	stdout, stderr bytes.Buffer
	seen           int  // of stdout, by expect
	ended          bool // stdout has
	readers        sync.WaitGroup
}

// launch starts a command. It has a terminal if that is asked for.
func launch(t *testing.T, folder string, argv []string, terminal bool, env ...string) *client {
	t.Helper()
	return launchAs(t, nil, folder, argv, terminal, env...)
}

// launching is held while a terminal is open here: a process that starts meanwhile has it, too,
// for an instant, and many of them would look like somebody who has grabbed it.
var launching sync.Mutex

// launchAs is launch for another user.
func launchAs(t *testing.T, as *syscall.Credential, folder string, argv []string, terminal bool, env ...string) *client {
	t.Helper()
	c := &client{t: t, cmd: exec.Command(argv[0], argv[1:]...), size: pty.Winsize{Rows: 24, Cols: 80}}
	c.changed = sync.NewCond(&c.mu)
	c.cmd.Dir, c.cmd.SysProcAttr = folder, &syscall.SysProcAttr{Credential: as}
	c.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TERM=vt100", "PS1=> ", "HOME=/nonexistent", "LC_ALL=C.UTF-8"}, env...)
	if terminal {
		var err error
		launching.Lock()
		c.terminal, err = pty.StartWithSize(c.cmd, &c.size)
		launching.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if c.terminal, err = pollable(c.terminal); err != nil {
			t.Fatal(err)
		}
		c.stdin = c.terminal
		c.readers.Go(func() { c.read(c.terminal, &c.stdout) })
		return c
	}
	var childs [3]*os.File
	var err error
	if childs[0], c.stdin, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	for i, into := range []*bytes.Buffer{&c.stdout, &c.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			c.stdoutR = r
		}
		childs[i+1] = w
		c.readers.Go(func() { c.read(r, into) })
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = childs[0], childs[1], childs[2]
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, each := range childs {
		_ = each.Close()
	}
	return c
}

func (c *client) read(from *os.File, into *bytes.Buffer) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		c.mu.Lock()
		_, _ = into.Write(buffer[:n])
		c.changed.Broadcast()
		c.mu.Unlock()
		if err != nil {
			c.mu.Lock()
			c.ended = c.ended || into == &c.stdout
			c.changed.Broadcast()
			c.mu.Unlock()
			return
		}
	}
}

// expectEnd waits until the command has closed its output.
func (c *client) expectEnd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.ended {
		c.changed.Wait()
	}
}

// patience is how long a test waits for what should come at once: the machine may be busy.
const patience = time.Minute

// expect waits until the text is printed, after what was expected before.
func (c *client) expect(text string) {
	c.t.Helper()
	if !c.prints(text, patience) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.t.Errorf("waited in vain for %q after %q", text, c.stdout.Bytes()[max(0, c.seen-200):])
	}
}

// prints reports whether the text is printed within a time, after what was expected before.
func (c *client) prints(text string, within time.Duration) bool {
	late := false
	timer := time.AfterFunc(within, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.changed.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; ; c.changed.Wait() {
		if at := bytes.Index(c.stdout.Bytes()[c.seen:], []byte(text)); at >= 0 {
			c.seen += at + len(text)
			return true
		}
		if late || c.ended {
			return false
		}
	}
}

// send types.
func (c *client) send(text string) {
	c.t.Helper()
	if _, err := c.stdin.WriteString(text); err != nil && !errors.Is(err, syscall.EPIPE) {
		c.t.Errorf("typing %.20q: %v", text, err)
	}
}

// closeInput ends the input, as kubectl does at the end of its own.
func (c *client) closeInput() { _ = c.stdin.Close() }

// hangUp goes away, as kubectl does when it is killed.
func (c *client) hangUp() { _ = c.terminal.Close() }

// tty returns the name of its terminal.
func (c *client) tty() string {
	c.t.Helper()
	var number uint32
	if err := ioctl(c.terminal, syscall.TIOCGPTN, &number); err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprintf("/dev/pts/%d", number)
}

// handTo gives the terminal to a user, as a container runtime does.
func (c *client) handTo(user *syscall.Credential) {
	c.t.Helper()
	if err := os.Chown(c.tty(), int(user.Uid), int(user.Gid)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) resize(rows, cols uint16) {
	c.t.Helper()
	if err := pty.Setsize(c.terminal, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		c.t.Error(err)
	}
}

// stop stops the recorder, and waits until it has. resume lets it go on.
func (c *client) stop() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	waitFor(c.t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		return err == nil && strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " T")
	})
}

func (c *client) resume() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
}

// outcome is what a client has seen.
type outcome struct {
	code           int
	stdout, stderr []byte
}

// wait returns the outcome, as the container runtime reports it.
func (c *client) wait() outcome {
	c.t.Helper()
	timer := time.AfterFunc(3*patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.t.Errorf("%q does not end; it has printed %q", c.cmd.Args[len(c.cmd.Args)-1], c.stdout.String())
		_ = c.cmd.Process.Kill()
	})
	defer timer.Stop()
	_ = c.cmd.Wait() // the state says it
	if c.terminal == nil {
		c.closeInput()
	}
	c.readers.Wait()
	if c.terminal != nil {
		_ = c.terminal.Close()
	}
	status := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return outcome{code, c.stdout.Bytes(), c.stderr.Bytes()}
}

// newMark returns a variable for the environment of a session. Processes that the session leaves end with the test.
func newMark(t *testing.T) string {
	mark := "ADMITKIT_MARK=" + protocol.NewID()
	t.Cleanup(func() {
		for _, pid := range marked(t, mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return mark
}

// marked returns the processes with a variable in their environment.
func marked(t *testing.T, variable string) []int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, name := range names {
		environ, err := os.ReadFile(name)
		if err == nil && strings.Contains("\x00"+string(environ), "\x00"+variable+"\x00") {
			pid, _ := strconv.Atoi(strings.Split(name, "/")[2]) // the pattern says so
			pids = append(pids, pid)
		}
	}
	return pids
}

// told is what a recording says.
type told struct {
	head    protocol.Head
	output  []byte
	input   []byte
	sizes   []protocol.Size
	streams map[string]protocol.StreamSum
	files   []protocol.FileSum
	gaps    []string
	end     protocol.End
	numbers []uint64
}

func (p *place) recording(id string) told {
	p.t.Helper()
	r := told{streams: map[string]protocol.StreamSum{}}
	err := p.folder.Frames(id, func(f *protocol.Frame) error {
		r.numbers = append(r.numbers, f.Seq)
		switch f.Type {
		case protocol.Begin:
			return json.Unmarshal(f.Data, &r.head)
		case protocol.Output:
			r.output = append(r.output, f.Data...)
		case protocol.Input:
			r.input = append(r.input, f.Data...)
		case protocol.Resize:
			var size protocol.Size
			err := json.Unmarshal(f.Data, &size)
			r.sizes = append(r.sizes, size)
			return err
		case protocol.Stream:
			var sum protocol.StreamSum
			err := json.Unmarshal(f.Data, &sum)
			r.streams[sum.Name] = sum
			return err
		case protocol.File:
			var sum protocol.FileSum
			err := json.Unmarshal(f.Data, &sum)
			r.files = append(r.files, sum)
			return err
		case protocol.Gap:
			r.gaps = append(r.gaps, string(f.Data))
		case protocol.Exit:
			return json.Unmarshal(f.Data, &r.end)
		}
		return nil
	})
	if err != nil {
		p.t.Errorf("reading the recording: %v", err)
	}
	return r
}

func hexSum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
