package controlplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

func TestStopLeavesNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := ownTemp(t)
	var log bytes.Buffer
	began := time.Now()
	c, err := controlplane.Start(t.Context(), controlplane.Options{Kwok: true, Output: &log})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began))
	if len(processes(t, dir)) == 0 {
		t.Error("no process has a file in the temporary folder: this test could not find leftovers")
	}
	if _, err := os.Stat(c.Admin().KubeConfig); err != nil {
		t.Error(err)
	}

	began = time.Now()
	for range 2 { // the second time does nothing
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("stopped after %s", time.Since(began))
	nothingLeft(t, dir)
	if !strings.Contains(log.String(), "starting an etcd server") {
		t.Errorf("Output has no log of etcd, but %d bytes", log.Len())
	}
}

func TestStartSaysWhyItFailsAndLeavesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		options controlplane.Options
		want    string
	}{
		"with the log of a process that does not start": {
			controlplane.Options{APIServerArgs: map[string][]string{"no-such-flag": {"1"}}},
			"kube-apiserver: ",
		},
		"with the reason in that log": {
			controlplane.Options{APIServerArgs: map[string][]string{"no-such-flag": {"1"}}},
			"unknown flag: --no-such-flag",
		},
		"with the name of a CRD file that is not there": {
			controlplane.Options{CRDPaths: []string{"testdata/no-such-file.yaml"}},
			"testdata/no-such-file.yaml",
		},
		"with the option that asks for the impossible": {
			controlplane.Options{Nodes: 3},
			"Nodes needs Kwok",
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			dir := ownTemp(t)
			c, err := controlplane.Start(t.Context(), test.options)
			if err == nil {
				t.Fatal(errors.Join(errors.New("it starts"), c.Stop()))
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("want an error with %q, got: %v", test.want, err)
			}
			nothingLeft(t, dir)
		})
	}
}

// interrupting calls a function before the first line of a log.
type interrupting struct {
	io.Writer
	interrupt func()
}

func (w interrupting) Write(p []byte) (int, error) {
	w.interrupt()
	return w.Writer.Write(p)
}

func TestTheEndOfTheContextInterruptsStart(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := ownTemp(t)
	reason := errors.New("etcd has said something")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var log testkit.Output
	c, err := controlplane.Start(ctx, controlplane.Options{Output: interrupting{&log, func() { cancel(reason) }}})
	if err == nil {
		t.Fatal(errors.Join(errors.New("it starts"), c.Stop()))
	}
	if !errors.Is(err, reason) {
		t.Errorf("want the context's error, got: %v", err)
	}
	if log.HasLine("Serving securely") {
		t.Error("Start goes on until kube-apiserver serves")
	}
	nothingLeft(t, dir)
}

func TestAMissingBinaryIsNamedWithTheCommandThatMakesIt(t *testing.T) {
	empty, assets := t.TempDir(), t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.WriteFile(filepath.Join(assets, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(empty)
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	for name, test := range map[string]struct {
		options controlplane.Options
		want    []string
		not     string
	}{
		"each one that is in no default place": {
			controlplane.Options{ControllerManager: true, Kwok: true},
			[]string{"kube-controller-manager, kwok", assets, filepath.Join(empty, "bin/k8s/current"), "make controlplane", "setup-envtest"},
			"etcd, ",
		},
		"each one that is not in BinaryDir": {
			controlplane.Options{BinaryDir: empty},
			[]string{"etcd, kube-apiserver, kubectl", empty, "make controlplane"},
			assets,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := controlplane.Start(t.Context(), test.options)
			if err == nil {
				t.Fatal("it starts")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want an error with %q, got: %v", want, err)
				}
			}
			if first, _, _ := strings.Cut(err.Error(), "In admitkit's repository"); strings.Contains(first, test.not) {
				t.Errorf("want an error without %q, got: %v", test.not, err)
			}
		})
	}
}

// A folder that were ignored would let the tests run on another Kubernetes than their author means.
func TestAWrongFolderOfAssetsIsAnErrorAndNotIgnored(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, folder := range []string{"assets", "parent/v1.33.1", "bin/k8s/current"} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, assets := range map[string]string{
		"a folder that does not exist":  filepath.Join(dir, "absent"),
		"a file":                        filepath.Join(dir, "assets", "etcd"),
		"a relative path":               "assets",
		"a folder without any binaries": filepath.Join(dir, "parent"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBEBUILDER_ASSETS", assets)
			_, err := controlplane.Start(t.Context(), controlplane.Options{})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("KUBEBUILDER_ASSETS is %q", assets)) || !strings.Contains(err.Error(), "unset KUBEBUILDER_ASSETS") {
				t.Errorf("got: %v", err)
			}
		})
	}
}
