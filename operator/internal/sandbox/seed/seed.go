// Package seed fetches git repositories into the folder of a Workspace. It runs in a Pod of
// its own, and alone imports go-git.
package seed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gitclient "github.com/go-git/go-git/v5/plumbing/transport/client"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage/memory"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/admitkit/admitkit/operator/internal/sandbox/repo"
)

// Options are the options of [Run].
type Options struct {
	// Repos are the repositories, as a list in JSON: what Pods have in $ADMITKIT_SEED.
	Repos string
	// Dir is the folder of the Workspace. Default: /workspace.
	Dir string
	// CAFile has authorities of servers, in PEM, besides those of the image. Default: /admitkit/ca/ca.crt, if that exists.
	CAFile string
	// Log gets a line for each repository, without credentials.
	Log io.Writer
}

// Env is the variable that has the repositories.
const Env = repo.Env

// fetched is a line of the manifest.
type fetched struct {
	URL    string `json:"url"`
	Path   string `json:"path"`
	Ref    string `json:"ref,omitempty"`
	Commit string `json:"commit"`
}

// Run fetches the repositories, and writes which commits these are into .admitkit/repos.json. What
// an earlier attempt left of them goes first. It is for one at a time: the clients of go-git are
// the process's.
func Run(ctx context.Context, o Options) error {
	var repos []repo.Repo
	if err := json.Unmarshal([]byte(o.Repos), &repos); err != nil || len(repos) == 0 {
		return fmt.Errorf("%s: must be a list of repositories in JSON: %w", Env, err)
	}
	if o.Dir == "" {
		o.Dir = repo.Dir
	}
	if err := trust(o.CAFile); err != nil {
		return err
	}
	manifest := make([]fetched, 0, len(repos))
	for i := range repos {
		r := &repos[i]
		begun := time.Now()
		commit, err := fetchPatiently(ctx, o.Dir, r)
		if err != nil {
			return fmt.Errorf("repos[%d]: %w", i, err)
		}
		manifest = append(manifest, fetched{r.URL, r.Path, r.Ref, commit})
		_, _ = fmt.Fprintf(o.Log, "repos[%d]: %s is at %s in %s\n", i, r.URL, commit, time.Since(begun).Round(time.Millisecond))
	}
	return writeManifest(o.Dir, manifest)
}

func writeManifest(dir string, manifest []fetched) error {
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, ".admitkit")
	if err := os.RemoveAll(dir); err != nil { // a repository may bring a link of that name
		return err
	}
	if err := os.Mkdir(dir, 0o775); err != nil { //nolint:gosec // runs of the same group write here
		return err
	}
	return os.WriteFile(filepath.Join(dir, "repos.json"), append(text, '\n'), 0o664) //nolint:gosec // runs of the same group read it
}

// trust has go-git trust the authorities in a file, too, and follow no redirect to another server: it
// would get the credentials.
func trust(file string) error {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	named := file != ""
	if !named {
		file = repo.CAFile
	}
	pem, err := os.ReadFile(file) //nolint:gosec // the flag names it
	switch {
	case err == nil && !roots.AppendCertsFromPEM(pem):
		return fmt.Errorf("%s: has no certificate in PEM", file)
	case err != nil && (named || !errors.Is(err, os.ErrNotExist)):
		return fmt.Errorf("authorities: %w", err)
	}
	client := githttp.NewClient(&http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: 30 * time.Second, ResponseHeaderTimeout: time.Minute},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
				return &lastingError{fmt.Errorf("the server redirects to %s://%s: name that in the URL", req.URL.Scheme, req.URL.Host)}
			}
			if len(via) > 3 {
				return errors.New("the server redirects too often")
			}
			return nil
		},
	})
	gitclient.InstallProtocol(repo.HTTPS, client)
	for _, other := range []string{"http", "git", "file"} {
		gitclient.InstallProtocol(other, nil)
	}
	return nil
}

// attempts is how often to try to fetch a repository, and pause how long to wait after the first time.
const (
	attempts = 3
	pause    = 2 * time.Second
)

// fetchPatiently tries again what another time may be different.
func fetchPatiently(ctx context.Context, dir string, r *repo.Repo) (commit string, err error) {
	for n := range attempts {
		commit, err = fetch(ctx, dir, r)
		var lasting *lastingError
		var stranger *knownhosts.KeyError
		if err == nil || n == attempts-1 || errors.As(err, &lasting) || errors.As(err, &stranger) || errors.Is(err, transport.ErrAuthenticationRequired) ||
			errors.Is(err, transport.ErrAuthorizationFailed) || errors.Is(err, transport.ErrRepositoryNotFound) {
			return commit, err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(pause << n):
		}
	}
	return commit, err
}

// lastingError is wrong with what was asked for.
type lastingError struct{ error }

func (e *lastingError) Unwrap() error { return e.error }

// fetch fetches a repository, and returns the commit that is checked out.
func fetch(ctx context.Context, dir string, r *repo.Repo) (commit string, err error) {
	scheme, _, err := repo.Parse(r.URL)
	if err != nil {
		return "", &lastingError{fmt.Errorf("url: %w", err)}
	}
	path, err := repo.Clean(r.Path)
	if err != nil {
		return "", &lastingError{fmt.Errorf("path: %w", err)}
	}
	auth, err := authOf(scheme, r)
	if err != nil {
		return "", &lastingError{err}
	}
	ref, hash, err := resolve(ctx, r, auth)
	if err != nil {
		return "", err
	}
	into := filepath.Join(dir, path)
	if err := empty(into, path == "."); err != nil {
		return "", err
	}
	cloned, err := git.PlainCloneContext(ctx, into, false, &git.CloneOptions{
		URL: r.URL, Auth: auth, ReferenceName: ref, SingleBranch: hash.IsZero(), NoCheckout: !hash.IsZero(), Depth: r.Depth, Tags: git.NoTags,
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.URL, err)
	}
	if !hash.IsZero() {
		tree, err := cloned.Worktree()
		if err == nil {
			err = tree.Checkout(&git.CheckoutOptions{Hash: hash})
		}
		if err != nil {
			return "", fmt.Errorf("%s: commit %s: %w", r.URL, hash, err)
		}
		return hash.String(), nil
	}
	head, err := cloned.Head()
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.URL, err)
	}
	return head.Hash().String(), nil
}

// empty removes what an earlier attempt left. The folder of the Workspace itself is a mount, which may have lost+found.
func empty(into string, whole bool) error {
	if !whole {
		return os.RemoveAll(into)
	}
	entries, err := os.ReadDir(into)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == "lost+found" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(into, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

var commits = regexp.MustCompile(`^[0-9a-f]{40}$`)

// resolve finds out what a ref is: a commit, or a branch or tag, for which it asks the server.
func resolve(ctx context.Context, r *repo.Repo, auth transport.AuthMethod) (plumbing.ReferenceName, plumbing.Hash, error) {
	switch {
	case r.Ref == "":
		return plumbing.HEAD, plumbing.ZeroHash, nil
	case commits.MatchString(r.Ref):
		return plumbing.HEAD, plumbing.NewHash(r.Ref), nil
	}
	remote := git.NewRemote(memory.NewStorage(), &config.RemoteConfig{Name: "origin", URLs: []string{r.URL}})
	refs, err := remote.ListContext(ctx, &git.ListOptions{Auth: auth})
	if err != nil {
		return "", plumbing.ZeroHash, fmt.Errorf("%s: %w", r.URL, err)
	}
	for _, name := range []plumbing.ReferenceName{plumbing.NewBranchReferenceName(r.Ref), plumbing.NewTagReferenceName(r.Ref), plumbing.ReferenceName(r.Ref)} {
		for _, ref := range refs {
			if ref.Name() == name {
				return name, plumbing.ZeroHash, nil
			}
		}
	}
	return "", plumbing.ZeroHash, &lastingError{fmt.Errorf("%s: ref %s: the server has neither a branch nor a tag of the name", r.URL, r.Ref)}
}

// authOf reads the credentials of a repository.
func authOf(scheme string, r *repo.Repo) (transport.AuthMethod, error) {
	if r.Credentials == "" {
		if scheme == repo.SSH {
			return nil, errors.New("credentialsFrom: ssh needs a Secret with ssh-privatekey and known_hosts")
		}
		return nil, nil //nolint:nilnil // the repository is public
	}
	read := func(key string) (string, error) {
		text, err := os.ReadFile(filepath.Join(r.Credentials, key)) //nolint:gosec // our own Pod mounts it
		if err != nil || len(text) == 0 {
			return "", fmt.Errorf("credentialsFrom: the Secret has no key %s", key)
		}
		return string(text), nil
	}
	if scheme == repo.HTTPS {
		username, err := read("username")
		if err != nil {
			username = "git" // with a token, most servers take any
		}
		password, err := read("password")
		return &githttp.BasicAuth{Username: strings.TrimSpace(username), Password: strings.TrimSpace(password)}, err
	}
	key, err := read("ssh-privatekey")
	if err != nil {
		return nil, err
	}
	if _, err := read("known_hosts"); err != nil { // without it, anybody could be the server
		return nil, err
	}
	endpoint, err := transport.NewEndpoint(r.URL)
	if err != nil {
		return nil, errors.New("url: cannot be read")
	}
	if endpoint.User == "" {
		endpoint.User = "git"
	}
	auth, err := gitssh.NewPublicKeys(endpoint.User, []byte(key), "")
	if err != nil {
		return nil, errors.New("credentialsFrom: ssh-privatekey is not a private key without a passphrase")
	}
	known, err := gitssh.NewKnownHostsDb(filepath.Join(r.Credentials, "known_hosts"))
	if err != nil {
		return nil, errors.New("credentialsFrom: known_hosts cannot be read")
	}
	auth.HostKeyCallback = known.HostKeyCallback()
	port := endpoint.Port
	if port == 0 {
		port = gitssh.DefaultPort
	}
	return &knownServer{auth, known.HostKeyAlgorithms(net.JoinHostPort(endpoint.Host, strconv.Itoa(port)))}, nil
}

// knownServer is the user's key, for a server that is known by keys of some algorithms: with another of its keys, it would
// be taken for an impostor.
type knownServer struct {
	*gitssh.PublicKeys
	algorithms []string
}

// ClientConfig implements [gitssh.AuthMethod].
func (k *knownServer) ClientConfig() (*ssh.ClientConfig, error) {
	config, err := k.PublicKeys.ClientConfig()
	if err == nil {
		config.HostKeyAlgorithms = k.algorithms
	}
	return config, err
}
