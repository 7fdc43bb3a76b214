package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// pluginName is the name by which kubectl finds the plugin: here a link to the test's own
// binary, which TestMain then makes the plugin.
const pluginName = "kubectl-access"

// installPlugin puts the plugin on the PATH, and kubectl, which --shell runs. Nothing in this
// process finds the kubeconfig of the developer.
func installPlugin(bin string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	completion, err := filepath.Abs("kubectl_complete-access")
	if err != nil {
		return err
	}
	kubeconfig, kubectl := filepath.Join(bin, "kubeconfig"), cluster.Kubectl(context.Background(), nil).Path
	return errors.Join(
		os.Symlink(self, filepath.Join(bin, pluginName)), os.Symlink(completion, filepath.Join(bin, filepath.Base(completion))),
		os.Setenv("PATH", bin+string(os.PathListSeparator)+filepath.Dir(kubectl)+string(os.PathListSeparator)+os.Getenv("PATH")),
		os.WriteFile(kubeconfig, nil, 0o600), os.Setenv("KUBECONFIG", kubeconfig), os.Setenv("HOME", bin),
	)
}

// throughKubectl is `kubectl access ...`, as a process.
func throughKubectl(t *testing.T, user *controlplane.User, args ...string) *exec.Cmd {
	t.Helper()
	return cluster.Kubectl(t.Context(), user, append([]string{"access"}, args...)...)
}

func ran(t *testing.T, command *exec.Cmd) outcome {
	t.Helper()
	return start(t, command)()
}

// start returns a function that waits for the end.
func start(t *testing.T, command *exec.Cmd) (wait func() outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return func() outcome {
		_ = command.Wait() // its exit code says it
		return outcome{stdout.String(), stderr.String(), command.ProcessState.ExitCode()}
	}
}

func TestKubectlFindsThePluginAndItsCompletion(t *testing.T) {
	t.Parallel()
	o := ran(t, throughKubectl(t, alice, "exec", "web", "-n", namespace, "--reason", "a test")).expect(t, 0, "access until")
	if !strings.HasPrefix(o.stdout, "kubectl get pod -n shop web-") || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("standard output is %q, want the command alone", o.stdout)
	}
	if o := ran(t, throughKubectl(t, mallory, "exec", "web", "-n", namespace)).expect(t, cli.CodeRefused); !strings.HasPrefix(o.stderr, "error: refused: ") || o.stdout != "" {
		t.Errorf("standard error is %q, and standard output %q", o.stderr, o.stdout)
	}
	ran(t, cluster.Kubectl(t.Context(), alice, "__complete", "access", "exec", "-n", namespace, "")).expect(t, 0, "asleep\nevil\nweb\n")
}

func TestAnInterruptLeavesTheRequestAndSaysHowToRevokeIt(t *testing.T) {
	t.Parallel()
	command := throughKubectl(t, alice, "exec", "asleep", "-n", namespace, "--name", "interrupted")
	ended := start(t, command)
	req := &v1alpha1.ExecAccessRequest{}
	testkit.Eventually(t, "the request is there", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "interrupted"}, req) == nil
	})
	if err := command.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended().expect(t, cli.CodeInterrupted, "interrupted", "kubectl access revoke interrupted")
	kubectlAccess(t, alice, "revoke", "interrupted", "-n", namespace).expect(t, 0)
}

// The informer logs to the standard error of the process.
func TestWhoMayNotWatchIsToldSoAtOnce(t *testing.T) {
	t.Parallel()
	for user, may := range map[string]string{"dave": "who may list", "erin": "who may read alone"} {
		t.Run(may, func(t *testing.T) {
			t.Parallel()
			o := ran(t, throughKubectl(t, nil, "exec", "web", "-n", namespace, "--as", user, "--timeout", "1m")).
				expect(t, cli.CodeRefused, "cannot tell when access is ready", `cannot watch resource "execaccessrequests"`, user, "The request is kept")
			if strings.Contains(o.stderr, "reflector") {
				t.Errorf("standard error has the informer's log: %s", o.stderr)
			}
		})
	}
}

// A kubectl of the tests' own: the real one does not end by a signal when told.
func TestAShellThatASignalEndedIsReportedAsShellsDo(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte("#!/bin/sh\nkill -TERM $$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	command := throughKubectl(t, alice, "exec", "web", "-n", namespace, "--shell")
	command.Env = append(command.Env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	ran(t, command).expect(t, 128+int(syscall.SIGTERM), "terminated")
}

// A kubectl of the tests' own shows what the real one would get.
func TestTheShellConnectsAsTheCommandLineSays(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	proxy, used := connectProxy(t)
	config, err := clientcmd.LoadFromFile(cluster.Admin().KubeConfig)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--as=alice", "--as-uid=42", "--as-group=devs", "--as-group=system:authenticated", "--as-user-extra=team=a", "--as-user-extra=team=b",
		"--request-timeout=2m", "--proxy-url=" + proxy, "--context=" + config.CurrentContext, "--kubeconfig=" + cluster.Admin().KubeConfig,
		"--disable-compression=true", "--cache-dir=" + t.TempDir(),
	}
	command := throughKubectl(t, nil, append([]string{"exec", "web", "-n", namespace, "--shell"}, flags...)...)
	command.Env = append(command.Env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	got := strings.Split(ran(t, command).expect(t, 0).stdout, "\n")
	for _, flag := range flags {
		if !slices.Contains(got, flag) {
			t.Errorf("kubectl does not get %s, but %q", flag, got)
		}
	}
	if slices.ContainsFunc(got, func(arg string) bool { return strings.HasPrefix(arg, "--tls-server-name") }) {
		t.Errorf("kubectl gets flags that nobody gave: %q", got)
	}
	if used.Load() == 0 {
		t.Error("the request itself does not go through the proxy")
	}
}

// connectProxy runs a proxy, and counts its connections.
func connectProxy(t *testing.T) (url string, used *atomic.Int32) {
	t.Helper()
	used = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		used.Add(1)
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = to.Close() }()
		w.WriteHeader(http.StatusOK)
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() { _, _ = io.Copy(to, buffered) }()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL, used
}
