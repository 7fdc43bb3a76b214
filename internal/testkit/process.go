package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// OpenSources is for tests that run the go command. go test keeps a result until a file of
// the module changes that the test has opened, and does not see what other programs open.
var OpenSources = sync.OnceValue(func() error {
	root, err := filepath.Abs(".")
	for err == nil {
		if _, err := os.Stat(filepath.Join(root, "Makefile")); err == nil {
			break
		}
		if filepath.Dir(root) == root {
			return errors.New("no folder above this one has a Makefile")
		}
		root = filepath.Dir(root)
	}
	return errors.Join(err, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == "bin" || entry.Name() == ".git") {
			return fs.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		return file.Close()
	}))
})

// Build runs `go build -o output` with more arguments.
func Build(ctx context.Context, output string, args ...string) error {
	if err := OpenSources(); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", output}, args...)...)
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, text)
	}
	return nil
}

// Again returns a command that runs the test's own binary, with one variable more
// in its environment, by which its TestMain knows that it is to be a program.
func Again(t testing.TB, variable, value string, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), variable+"="+value)
	return cmd
}

// Output is what a program has printed so far. It may be read while the program
// runs.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// HasLine reports whether one line contains all of the texts.
func (o *Output) HasLine(texts ...string) bool {
next:
	for line := range strings.Lines(o.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		return true
	}
	return false
}

// Process is a program that runs for a test.
type Process struct {
	*exec.Cmd
	// Output has what the program prints on both of its streams.
	Output Output
	exited chan struct{}
	err    error
	// read is how much of the output Await has read.
	read int
}

// Run starts a program. If it still runs when the test ends, it is killed; a test
// that fails prints the end of its output.
func Run(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.Output, &p.Output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text := p.Output.String()
			t.Logf("the output of %s ends with:\n%s", cmd.Path, text[max(0, len(text)-4000):])
		}
	})
	return p
}

// Await waits for a line that begins with the prefix, after the one that it
// returned before, and returns it.
func (p *Process) Await(t testing.TB, prefix string) string {
	t.Helper()
	for timeout := time.After(deadline); ; {
		text := p.Output.String()
		for line := range strings.Lines(text[p.read:]) {
			if !strings.HasSuffix(line, "\n") {
				break // it is not complete
			}
			p.read += len(line)
			if strings.HasPrefix(line, prefix) {
				return strings.TrimSuffix(line, "\n")
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-p.exited:
			if len(p.Output.String()) == len(text) {
				t.Fatalf("%s ended (%v) before it printed %q", p.Path, p.err, prefix)
			}
		case <-timeout:
			t.Fatalf("%s has not printed %q within %s", p.Path, prefix, deadline)
		}
	}
}

// RunAgain starts the test's own binary as a program, with options, as JSON, in the variable of
// [Again]. Its standard input ends with this process: see [UntilParentEnds].
func RunAgain(t testing.TB, variable string, options any, args ...string) *Process {
	t.Helper()
	text, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	cmd := Again(t, variable, string(text), args...)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	return Run(t, cmd)
}

// UntilParentEnds returns the context of a program that [RunAgain] has started: it ends when
// the test's process does.
func UntilParentEnds() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// Stop interrupts the program, which must then end without an error.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("interrupting %s: %v", p.Path, err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("%s ended with %v", p.Path, err)
	}
}

// Wait waits for the program's end.
func (p *Process) Wait() error {
	select {
	case <-p.exited:
		return p.err
	case <-time.After(deadline):
		return fmt.Errorf("it still runs after %s", deadline)
	}
}

// Kill ends the program as the kernel does when memory runs out.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.exited
}

// Memory returns a size in the status of a process, in bytes: VmRSS, what it occupies, or
// VmHWM, the most that it has occupied.
func Memory(t testing.TB, pid int, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\n"+field+":")
	kilobytes, err := strconv.ParseInt(strings.Fields(after + " none")[0], 10, 64)
	if err != nil {
		t.Fatalf("process %d has no %s: %v", pid, field, err)
	}
	return kilobytes << 10
}

// Megabytes returns a number of bytes with its fractions, for [Figure].
func Megabytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
