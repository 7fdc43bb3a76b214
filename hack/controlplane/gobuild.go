package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// downloads is the file beside the version folders that says what Go downloaded.
const downloads = "downloads.log"

// goBuild builds one command, and says what is being compiled and how much is left.
type goBuild struct {
	name string
	// dir is where go runs, and pkg what it builds there.
	dir, pkg string
	env      []string
	log      string
}

// run builds the command and hands it to a program, as go run -exec does: go run keeps
// what it has linked in Go's build cache, for the next clone of this repository.
func (g goBuild) run(ctx context.Context, program, ldflags string) error {
	stale, err := g.stale(ctx)
	if err != nil {
		return err
	}
	p := newProgress(g.name, stale, os.Stderr)
	defer p.report(10 * time.Second)()
	cmd := g.command(ctx, "run", "-v", "-ldflags", ldflags, "-exec", program, g.pkg)
	cmd.Stdout, cmd.Stderr = os.Stdout, p
	return cmd.Run()
}

// stale returns the packages that go has to compile, which are those that its build
// cache does not have, and last the command's own, for which it cannot be told. It
// downloads the modules, so that run has no need to.
func (g goBuild) stale(ctx context.Context) ([]string, error) {
	log, err := os.OpenFile(g.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	var said bytes.Buffer
	cmd := g.command(ctx, "list", "-deps", "-f", "{{if or .Stale (eq .Name \"main\")}}{{.ImportPath}}{{end}}", g.pkg)
	cmd.Stderr = io.MultiWriter(log, &said)
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return strings.Fields(string(output)), nil
}

func (g goBuild) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = g.dir, g.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// progress reads what go run -v says. It names each package when it begins to compile it.
type progress struct {
	name   string
	stderr io.Writer
	began  time.Time
	total  int

	mu   sync.Mutex
	left map[string]bool
	now  string
	// partial is a line without its end.
	partial []byte
}

func newProgress(name string, stale []string, stderr io.Writer) *progress {
	p := &progress{name: name, stderr: stderr, began: time.Now(), total: len(stale) - 1, left: map[string]bool{}}
	for _, pkg := range stale {
		p.left[pkg] = true
		p.now = cmp.Or(p.now, pkg) // go lists what is imported before what imports it
	}
	return p
}

// report says every so often how far the build is, until the function that it
// returns is called.
func (p *progress) report(every time.Duration) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				fmt.Println("controlplane:", p.state())
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

func (p *progress) state() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.began).Round(time.Second)
	left := len(p.left) - 1
	if left <= 0 {
		return fmt.Sprintf("%s: linking (%s)", p.name, took)
	}
	return fmt.Sprintf("%s: %d of %d packages are left to compile, now %s (%s)", p.name, left, p.total, p.now, took)
}

// Write takes what go writes to its standard error. What names no package is an
// error, and passed on.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, text...)
	for {
		line, rest, whole := bytes.Cut(p.partial, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		p.partial = bytes.Clone(rest)
		if pkg := string(line); p.left[pkg] {
			delete(p.left, pkg)
			p.now = pkg
		} else if _, err := fmt.Fprintf(p.stderr, "%s\n", line); err != nil {
			return 0, err
		}
	}
}
