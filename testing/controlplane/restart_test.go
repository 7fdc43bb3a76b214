package controlplane_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

func (w *whole) noAnswerWhileStopped(t *testing.T) {
	if err := w.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := w.StopAPIServer(); err != nil {
		t.Errorf("it is stopped already: %v", err)
	}
	if _, err := w.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
		t.Error("a client gets an answer")
	}
	began := time.Now()
	if err := w.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began))
}

func (w *whole) secondServerIsRefused(t *testing.T) {
	if err := w.StartAPIServer(t.Context()); err == nil {
		t.Error("it starts")
	}
}

func (w *whole) outlives(name string, restart func(context.Context) error) func(*testing.T) {
	return func(t *testing.T) {
		before, err := w.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("restarted after %s", time.Since(began))
		after, err := w.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if after.UID != before.UID {
			t.Errorf("the namespace default is another one")
		}
		deployment := "after-" + name
		w.run(t, nil, "create", "deployment", deployment, "--image=example.com/c")
		w.run(t, nil, "rollout", "status", "deployment/"+deployment, "--timeout=60s")
		t.Logf("the controllers are back after %s", time.Since(began))
	}
}

func (w *whole) stopEndsWhatExecLeft(t *testing.T) {
	w.run(t, nil, "run", "last", "--image=example.com/c")
	w.run(t, nil, "wait", "--for=condition=Ready", "pod/last", "--timeout=30s")
	marker := "marker-of-" + filepath.Base(w.Admin().KubeConfig)
	cmd := w.Kubectl(t.Context(), nil, "exec", "last", "--", "sh", "-c", `trap "" TERM HUP; while :; do sleep 1; done`, marker)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, patience, "the command runs", func(context.Context) error {
		if !slices.ContainsFunc(processes(t, marker), func(line string) bool { return strings.HasPrefix(line, "sh -c") }) {
			return os.ErrNotExist
		}
		return nil
	})
	began := time.Now()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped after %s", time.Since(began))
	if err := cmd.Wait(); err == nil {
		t.Error("kubectl exec succeeds")
	}
	if left := processes(t, marker); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
