package examples_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
)

// step is a code block of the tutorial: a file, or commands with what they print.
type step struct{ file, language, text string }

func readSteps(t *testing.T, path string) (steps []step) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?s)(?:`([a-z0-9_./]+)`:\n\n)?```([a-z]+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		steps = append(steps, step{match[1], match[2], match[3]})
	}
	return steps
}

func TestTheTutorialDoesWhatItSays(t *testing.T) { follow(t, "../docs/first-extension.md", 14) }

func TestTheWalkThroughAKindOfOnesOwnDoesWhatItSays(t *testing.T) {
	follow(t, "../docs/own-kind.md", 8)
}

func TestTheWalkThroughOfAShippedValidatorDoesWhatItSays(t *testing.T) {
	follow(t, "../docs/ship.md", 15)
}

// follow writes the files of a page and runs its commands, in order, and compares what they
// print where the page says so. Five things are other than with its reader: the library is
// this one, the program is built once, the ports are free ones, HOST is 127.0.0.1, and the
// cluster has neither nodes nor controllers.
func follow(t *testing.T, page string, atLeast int) {
	t.Helper()
	dir := t.TempDir()
	tools, err := filepath.Abs("../bin/tools")
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := filepath.Abs("../bin/k8s/current")
	if err != nil {
		t.Fatal(err)
	}
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		kubectl = assets
	}
	health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	env := append(outside(), "KUBECONFIG="+cluster.Admin().KubeConfig, "PATH="+kubectl+":"+tools+":"+os.Getenv("PATH"), "KUBEBUILDER_ASSETS="+kubectl,
		fmt.Sprintf("ADMITKIT_PORT=%d", freeport.For(t)), "ADMITKIT_DRAIN_PERIOD=10ms")
	stop := func() {}
	commands, program := 0, filepath.Join(dir, "program")
	var build func()
	for _, step := range readSteps(t, page) {
		if step.file != "" {
			path := filepath.Join(dir, step.file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(step.text), 0o600)); err != nil {
				t.Fatal(err)
			}
			if step.file == "main.go" {
				build = sync.OnceFunc(func() { goIn(t, dir, "build", "-o", program, ".") })
			}
			continue
		}
		for command := range strings.SplitSeq(strings.TrimPrefix(step.text, "$ "), "\n$ ") {
			line, want, _ := strings.Cut(command, "\n")
			commands++
			switch {
			case strings.HasPrefix(line, "go mod init "):
				// `go get` would fetch a release.
				require(t, dir, strings.TrimPrefix(line, "go mod init "))
				continue
			case line == "go get "+library:
				continue
			case strings.HasPrefix(line, "go run . start "):
				build()
				stop = startTutorial(t, program, dir, append(env, "ADMITKIT_HEALTH_ADDRESS="+health, "ADMITKIT_METRICS_ADDRESS="), health, strings.Fields(strings.Replace(line, " HOST ", " 127.0.0.1 ", 1))[3:])
				continue
			case strings.HasPrefix(line, "go run . manifests "):
				stop() // the page says so
			}
			if strings.HasPrefix(line, "go run . ") {
				build()
			}
			want = strings.TrimRight(want, "\n")
			run := func() (string, bool) {
				cmd := exec.CommandContext(t.Context(), "bash", "-c", built(line, program))
				cmd.Dir, cmd.Env = dir, env
				if strings.Contains(line, " manifests ") {
					// The manifests hold the flags that are given.
					cmd.Env = env[:len(env)-2]
				}
				got, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("$ %s\n%s%v", line, got, err)
				}
				return string(got), strings.HasPrefix(string(got), want)
			}
			if strings.Contains(line, " --dry-run=server") { // it may take a moment until a file is followed
				var got string
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("$ %s\nprinted at last:\n%s", line, got)
					}
				})
				testkit.Eventually(t, "$ "+line+"\n"+want, func(context.Context) (so bool) {
					got, so = run()
					return so
				})
			} else if got, so := run(); !so {
				t.Errorf("$ %s\nprints:\n%s\nand not:\n%s", line, got, want)
			}
		}
	}
	if commands < atLeast {
		t.Errorf("only %d commands were found on the page", commands)
	}
}

// startTutorial starts the program and waits until it is ready.
func startTutorial(t *testing.T, program, dir string, env []string, health string, args []string) (stop func()) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, env
	process := testkit.Run(t, cmd)
	stop = sync.OnceFunc(func() { process.Stop(t) })
	t.Cleanup(stop)
	testkit.Eventually(t, "the program is ready", func(ctx context.Context) bool { return testkit.IsReady(ctx, health) })
	return stop
}
