package testkit

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Chart is a release of a chart of this repository, for Helm.
type Chart struct {
	Dir, Release, Namespace string
	// Values are in YAML.
	Values string
}

// Rendered is what Helm makes of a chart.
type Rendered struct{ Manifest, Hooks, Notes string }

// Documents returns all objects, as `helm template` prints them.
func (r Rendered) Documents() string { return r.Manifest + r.Hooks }

// Render returns the objects and the notes as `helm install --dry-run=client` does.
func (c Chart) Render(t testing.TB) (Rendered, error) {
	t.Helper()
	return c.ask(t, false)
}

// Lint does what `helm lint --strict` does.
func (c Chart) Lint(t testing.TB) error {
	t.Helper()
	_, err := c.ask(t, true)
	return err
}

// Tool returns the path of a program of bin/tools that is to read the chart. It opens the
// chart's files: go test caches a result until a file changes that the test has opened.
func (c Chart) Tool(t testing.TB, name string) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(c.Dir, "../../../bin/tools", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%s is not built: run `make bin/tools/%s`: %v", name, name, err)
	}
	if err := filepath.WalkDir(c.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return program
}

// renderer is the process of hack/helm/chartrender.
var renderer struct {
	sync.Mutex
	process  *exec.Cmd
	stdin    io.Closer
	requests *json.Encoder
	answers  *json.Decoder
	// known are the answers, which are the same for the same request.
	known map[chartRequest]chartAnswer
}

type chartRequest struct {
	Chart, Release, Namespace, Values string
	Lint                              bool
}

type chartAnswer struct {
	Rendered
	Error string
}

func (c Chart) ask(t testing.TB, lint bool) (Rendered, error) {
	t.Helper()
	renderer.Lock()
	defer renderer.Unlock()
	request := chartRequest{c.Dir, c.Release, c.Namespace, c.Values, lint}
	answer, known := renderer.known[request]
	if !known {
		if renderer.requests == nil {
			startRenderer(t, c.Tool(t, "chartrender"))
		}
		err := renderer.requests.Encode(request)
		if err == nil {
			err = renderer.answers.Decode(&answer)
		}
		if err != nil {
			t.Fatalf("rendering %s: %v", c.Dir, err)
		}
		renderer.known[request] = answer
	}
	if answer.Error != "" {
		return Rendered{}, errors.New(answer.Error)
	}
	return answer.Rendered, nil
}

func startRenderer(t testing.TB, program string) {
	t.Helper()
	cmd := exec.Command(program)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "GOGC=400") // it is not for long
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	renderer.process, renderer.stdin = cmd, stdin
	renderer.requests, renderer.answers, renderer.known = json.NewEncoder(stdin), json.NewDecoder(stdout), map[chartRequest]chartAnswer{}
}

// EndRenderer ends the process that renders, if there is one. TestMain calls it, so that
// what rendering costs is part of what the tests cost.
func EndRenderer() {
	if renderer.process != nil {
		_ = renderer.stdin.Close()
		_ = renderer.process.Wait()
	}
}
