//go:build e2e && linux

package sandbox_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// asksModel runs operator/examples/agent as its README says, with its model server in the world.
func (i *installation) asksModel(t *testing.T) {
	const example, key = "../../examples/agent", "open-sesame"
	agent := filepath.Join(i.folder, "agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", agent, example)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	image, err := i.loadImage(t, i.builder(), "-binary", agent, "-name", "admitkit.dev/agent:dev")
	if err != nil {
		t.Fatal(err)
	}
	args := append(inNode(t, "--net"), agent, "model", "--address", modelAt+":443", "--cert", filepath.Join(i.folder, "tls.crt"), "--key", filepath.Join(i.folder, "tls.key"))
	model := exec.Command(args[0], args[1:]...)
	model.Env = append(os.Environ(), "MODEL_KEY="+key)
	model.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.Run(t, model).Await(t, "serving")

	manifest := func(name string) string {
		text, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.NewReplacer("namespace: agents", "namespace: "+agents, "registry.example.com/agent:1", image).Replace(string(text))
	}
	i.apply(t, manifest("agent.yaml"))
	i.apply(t, manifest("run.yaml"))
	pod := i.podOf(t, "first")
	seen := must(t, "kubectl", "get", "pod", pod.Name, "--namespace", agents, "--output", "yaml")
	if strings.Contains(seen, key) {
		t.Errorf("the Pod of the agent has the key: %s", seen)
	}
	first := ended(t, "first")
	if first.Status.Phase != v1alpha1.SandboxSucceeded || first.Status.Output != "notes.md has 25 bytes. I am done." {
		t.Errorf("the agent has %s: %q", first.Status.Phase, first.Status.Output)
	}
	testkit.Within(t, patience, "the last lines of its log are in its status", func(ctx context.Context) bool {
		return slices.ContainsFunc(runNamed(ctx, t, "first").Status.RecentEvents, func(e v1alpha1.SandboxEvent) bool { return e.Message == "> reads notes.md" })
	})
	awaitRecord(t, "first", "issued", "credential model of provider Secret")
	awaitRecord(t, "first", "succeeded", "")
}
