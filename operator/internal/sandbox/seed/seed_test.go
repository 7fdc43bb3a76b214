package seed_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/internal/sandbox/repo"
	"github.com/admitkit/admitkit/operator/internal/sandbox/seed"
)

const password = "hunter2-is-secret"

// world is a real git server over TLS, with a repository of two commits and a tag.
type world struct {
	url, ca, first, second, credentials string
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func serve(t *testing.T) *world {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git to serve with")
	}
	w, work, root := &world{credentials: t.TempDir()}, t.TempDir(), t.TempDir()
	git(t, work, "init", "-q", "-b", "main")
	for n, commit := range []*string{&w.first, &w.second} {
		if err := os.WriteFile(filepath.Join(work, "file"), fmt.Appendf(nil, "version %d", n+1), 0o600); err != nil {
			t.Fatal(err)
		}
		git(t, work, "add", "file")
		git(t, work, "commit", "-qm", "change")
		*commit = git(t, work, "rev-parse", "HEAD")
	}
	git(t, work, "tag", "v1", w.first)
	git(t, work, "branch", "feature/x", w.first)
	git(t, root, "clone", "-q", "--bare", work, "a.git")
	backend := &cgi.Handler{
		Path: filepath.Join(git(t, root, "--exec-path"), "git-http-backend"), InheritEnv: []string{"PATH"},
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		t.Errorf("the server to which another redirects got %q", req.Header.Get("Authorization"))
	}))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		switch user, got, _ := req.BasicAuth(); {
		case strings.HasPrefix(req.URL.Path, "/moved"):
			http.Redirect(rw, req, elsewhere.URL+"/a.git/info/refs", http.StatusFound)
		case user != "alice" || got != password:
			rw.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(rw, "who are you?", http.StatusUnauthorized)
		default:
			backend.ServeHTTP(rw, req)
		}
	}))
	t.Cleanup(server.Close)
	w.url, w.ca = server.URL, filepath.Join(t.TempDir(), "ca.crt")
	write := map[string]string{
		w.ca:                                     string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
		filepath.Join(w.credentials, "username"): "alice\n", filepath.Join(w.credentials, "password"): password + "\n",
	}
	for path, text := range write {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func run(t *testing.T, dir, ca string, repos ...repo.Repo) (log string, err error) {
	t.Helper()
	text, err := json.Marshal(repos)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = seed.Run(t.Context(), seed.Options{Repos: string(text), Dir: dir, CAFile: ca, Log: &out})
	if err != nil {
		out.WriteString(err.Error())
	}
	if strings.Contains(out.String(), password) {
		t.Errorf("the log has the password: %s", out.String())
	}
	return out.String(), err
}

func TestTheRepositoriesAreFetched(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tag", "left"), 0o700); err != nil { // by an attempt that was cut off
		t.Fatal(err)
	}
	of := func(path, ref string, depth int) repo.Repo {
		return repo.Repo{URL: w.url + "/a.git", Ref: ref, Path: path, Depth: depth, Credentials: w.credentials}
	}
	if _, err := run(t, dir, w.ca, of("head", "", 0), of("tag", "v1", 1), of("nested/branch", "feature/x", 0), of("commit", w.first, 0), of("shallow", "main", 1)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"head": "version 2", "tag": "version 1", "nested/branch": "version 1", "commit": "version 1", "shallow": "version 2"} {
		if got, err := os.ReadFile(filepath.Join(dir, path, "file")); err != nil || string(got) != want {
			t.Errorf("%s: %v, %q, want %q", path, err, got, want)
		}
	}
	if count := git(t, filepath.Join(dir, "shallow"), "rev-list", "--count", "HEAD"); count != "1" {
		t.Errorf("a depth of 1 has %s commits", count)
	}
	manifest, err := os.ReadFile(filepath.Join(dir, ".admitkit", "repos.json"))
	if err != nil || !strings.Contains(string(manifest), w.first) || !strings.Contains(string(manifest), w.second) {
		t.Errorf("%v: %s", err, manifest)
	}
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(password)) {
			t.Errorf("%s has the password", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBeFetchedIsNamed(t *testing.T) {
	w := serve(t)
	for sentence, test := range map[string]struct {
		repo repo.Repo
		ca   string
		want string
	}{
		"a ref that is not there":      {repo.Repo{URL: w.url + "/a.git", Ref: "none", Credentials: w.credentials}, w.ca, "neither a branch nor a tag"},
		"a repository without a right": {repo.Repo{URL: w.url + "/a.git"}, w.ca, "authentication required"},
		"one that is not there":        {repo.Repo{URL: w.url + "/none.git", Credentials: w.credentials}, w.ca, "repository not found"},
		"a redirect elsewhere":         {repo.Repo{URL: w.url + "/moved.git", Credentials: w.credentials}, w.ca, "the server redirects to https://"},
		"a scheme that is not safe":    {repo.Repo{URL: "file:///etc"}, w.ca, "only https and ssh"},
		"a path that climbs":           {repo.Repo{URL: w.url + "/a.git", Path: "../x"}, w.ca, "must be relative"},
		"ssh without a key":            {repo.Repo{URL: "git@git.example.com:a"}, w.ca, "ssh needs a Secret"},
		"ssh without known hosts":      {repo.Repo{URL: "git@git.example.com:a", Credentials: w.credentials}, w.ca, "has no key ssh-privatekey"},
		"authorities that are none":    {repo.Repo{URL: w.url + "/a.git"}, os.Args[0], "has no certificate in PEM"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if log, err := run(t, t.TempDir(), test.ca, test.repo); err == nil || !strings.Contains(log, test.want) {
				t.Errorf("got %q, want %q", log, test.want)
			}
		})
	}
}
