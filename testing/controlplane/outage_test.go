package controlplane_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

func (c cluster) stopsAPIServer(t *testing.T) {
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := c.StopAPIServer(); err != nil {
		t.Errorf("stopping it again fails: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "default"}, &corev1.Namespace{}); err == nil {
		t.Error("a client gets an answer")
	}
	began := time.Now()
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began))
}

func (c cluster) refusesASecondAPIServer(t *testing.T) {
	if err := c.StartAPIServer(t.Context()); err == nil {
		t.Error("it starts")
	}
}

// outlives restarts a part of the control plane and runs a Deployment afterwards.
func (c cluster) outlives(name string, restart func(context.Context) error) func(*testing.T) {
	return func(t *testing.T) {
		before := c.uid(t)
		began := time.Now()
		if err := restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("restarted after %s", time.Since(began))
		if c.uid(t) != before {
			t.Error("namespace default is not the one from before")
		}
		deployment := "after-" + name
		c.kubectl(t, nil, "create", "deployment", deployment, "--image=example.com/c")
		c.kubectl(t, nil, "rollout", "status", "deployment/"+deployment, "--timeout=60s")
		t.Logf("the controllers are back after %s", time.Since(began))
	}
}

// uid returns the UID of the namespace default.
func (c cluster) uid(t *testing.T) types.UID {
	t.Helper()
	var namespace corev1.Namespace
	if err := c.Get(t.Context(), client.ObjectKey{Name: "default"}, &namespace); err != nil {
		t.Fatal(err)
	}
	return namespace.UID
}

func (c cluster) stopsExecs(t *testing.T) {
	c.runPod(t, "last")
	marker := "marker-of-" + filepath.Base(c.Admin().KubeConfig)
	cmd := c.Kubectl(t.Context(), nil, "exec", "last", "--", "sh", "-c", `trap "" TERM HUP; while :; do sleep 1; done`, marker)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, 10*time.Second, "the command runs", func(context.Context) bool {
		return slices.ContainsFunc(processes(t, marker), func(line string) bool { return strings.HasPrefix(line, "sh -c") })
	})
	began := time.Now()
	if err := c.Stop(); err != nil {
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
