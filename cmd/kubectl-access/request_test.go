package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// A kubectl of the tests' own shows what the real one would get.
func TestTheShellConnectsAsTheCommandLineSays(t *testing.T) {
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
	command := cluster.Kubectl(t.Context(), nil, slices.Concat([]string{"access", "exec", "web", "-n", namespace, "--shell"}, flags)...)
	command.Env = append(command.Env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	got := strings.Split(ran(t, command, command.Run).expect(t, 0).stdout, "\n")
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
