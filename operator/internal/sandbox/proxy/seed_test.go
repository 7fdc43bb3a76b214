package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/internal/sandbox/repo"
	"github.com/admitkit/admitkit/operator/internal/sandbox/seed"
)

// seedVariable has what the process of a seed fetches.
const seedVariable = "ADMITKIT_TEST_SEED"

// TestASeedProcess is the seed, in a process of its own: Go reads the variables about proxies once.
func TestASeedProcess(t *testing.T) {
	of := seed.Options{Repos: os.Getenv(repo.Env), Dir: os.Getenv(seedVariable), Log: os.Stdout}
	if of.Dir == "" {
		t.Skip("it is part of TestGitThroughTheProxy")
	}
	of.CAFile = os.Getenv("SSL_CERT_FILE")
	if err := seed.Run(t.Context(), of); err != nil {
		t.Fatal(err)
	}
}

// gitServer serves a private repository: it has one file, and wants the credential that the proxy sets.
func gitServer(t *testing.T) http.Handler {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git to serve with")
	}
	git := func(dir string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	work, root := t.TempDir(), t.TempDir()
	git(work, "init", "-q", "-b", "main")
	if err := os.WriteFile(filepath.Join(work, "file"), []byte("this is private"), 0o600); err != nil {
		t.Fatal(err)
	}
	git(work, "add", "file")
	git(work, "commit", "-qm", "change")
	git(root, "clone", "-q", "--bare", work, "a.git")
	backend := &cgi.Handler{
		Path: filepath.Join(git(root, "--exec-path"), "git-http-backend"), InheritEnv: []string{"PATH"},
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	})
}

// A seed has a private repository by its proxy, with neither the credential nor trust in the server's authority: git itself,
// and the program of ours.
func TestGitThroughTheProxy(t *testing.T) {
	o := newOutside(t, ModeCooperative)
	o.server.Config.Handler = gitServer(t)
	folder := t.TempDir()
	ca := filepath.Join(folder, "ca.crt")
	if err := os.WriteFile(ca, o.bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "HTTPS_PROXY=http://"+o.address, "https_proxy=http://"+o.address, "SSL_CERT_FILE="+ca, "GIT_SSL_CAINFO="+ca, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0")
	of := func(host string) string { return fmt.Sprintf("https://%s:%d/a.git", host, o.port) }
	fetch := func(name, host string) ([]byte, error) {
		into := filepath.Join(folder, name)
		if name == "git" {
			cmd := exec.CommandContext(t.Context(), "git", "clone", "-q", of(host), into)
			cmd.Env = env
			return cmd.CombinedOutput()
		}
		if err := os.MkdirAll(into, 0o700); err != nil {
			t.Fatal(err)
		}
		repos, err := json.Marshal([]repo.Repo{{URL: of(host), Path: "."}})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestASeedProcess$")
		cmd.Env = slices.Concat(env, []string{repo.Env + "=" + string(repos), seedVariable + "=" + into})
		return cmd.CombinedOutput()
	}
	for _, name := range []string{"git", "seed"} {
		out, err := fetch(name, "api.example.com")
		text, read := os.ReadFile(filepath.Join(folder, name, "file"))
		if err != nil || read != nil || string(text) != "this is private" {
			t.Errorf("%s: %v, %v, %q: %s", name, err, read, text, out)
		}
		if config, err := os.ReadFile(filepath.Join(folder, name, ".git", "config")); err != nil || bytes.Contains(config, []byte("secret")) || bytes.Contains(out, []byte("Bearer")) {
			t.Errorf("%s: %v: the credential is in the volume, or in the log: %s, %s", name, err, config, out)
		}
		if err := os.RemoveAll(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
		if out, err := fetch(name, "other.example.com"); err == nil {
			t.Errorf("%s fetches from a server that no policy allows: %s", name, out)
		}
		o.onRecord(t, "other.example.com", "no policy allows")
	}
}
