package seed_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/admitkit/admitkit/operator/internal/sandbox/repo"
)

// sshServer is a real ssh server that runs git-upload-pack for one key, of the user git. It has two host keys, as
// those of OpenSSH have.
type sshServer struct {
	url        string
	ed25519Key ssh.PublicKey // of the server
	key        []byte        // of the user, in PEM
}

func serveSSH(t *testing.T) *sshServer {
	t.Helper()
	if _, err := exec.LookPath("git-upload-pack"); err != nil {
		t.Skip("there is no git to serve with")
	}
	s, root, work := &sshServer{}, t.TempDir(), t.TempDir()
	git(t, work, "init", "-q", "-b", "main")
	if err := os.WriteFile(filepath.Join(work, "file"), []byte("by ssh"), 0o600); err != nil {
		t.Fatal(err)
	}
	git(t, work, "add", "file")
	git(t, work, "commit", "-qm", "change")
	git(t, root, "clone", "-q", "--bare", work, "a.git")
	ours, key := userKey(t)
	s.key = key
	config := &ssh.ServerConfig{PublicKeyCallback: func(who ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if who.User() != "git" || !bytes.Equal(key.Marshal(), ours.Marshal()) {
			return nil, errors.New("not this one")
		}
		return nil, nil //nolint:nilnil // no restrictions
	}}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []any{rsaKey, edKey} {
		signer, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		config.AddHostKey(signer)
		s.ed25519Key = signer.PublicKey() // the last
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(connection, config, root)
		}
	}()
	s.url = "ssh://git@" + listener.Addr().String()
	return s
}

func userKey(t *testing.T) (ssh.PublicKey, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer.PublicKey(), pem.EncodeToMemory(block)
}

// answer serves a connection: the command git-upload-pack, and nothing else.
func answer(connection net.Conn, config *ssh.ServerConfig, root string) {
	server, channels, requests, err := ssh.NewServerConn(connection, config)
	if err != nil {
		_ = connection.Close()
		return
	}
	defer server.Close()
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		for request := range requests {
			command := struct{ Text string }{}
			if request.Type != "exec" || ssh.Unmarshal(request.Payload, &command) != nil {
				_ = request.Reply(request.Type == "env", nil)
				continue
			}
			_ = request.Reply(true, nil)
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uploadPack(channel, command.Text, root)}))
			_ = channel.Close()
		}
	}
}

func uploadPack(channel ssh.Channel, command, root string) uint32 {
	path, ok := strings.CutPrefix(command, "git-upload-pack ")
	if !ok {
		return 127
	}
	pack := exec.Command("git-upload-pack", filepath.Join(root, filepath.Clean("/"+strings.Trim(path, "'"))))
	pack.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	in, err := pack.StdinPipe()
	if err != nil {
		return 1
	}
	pack.Stdout, pack.Stderr = channel, channel.Stderr()
	go func() {
		_, _ = io.Copy(in, channel)
		_ = in.Close()
	}()
	if pack.Run() != nil {
		return 128
	}
	return 0
}

// credentials are those of a Secret, mounted.
func sshCredentials(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRepositoriesAreFetchedBySSHFromTheServerThatIsKnown(t *testing.T) {
	s := serveSSH(t)
	address := strings.TrimPrefix(s.url, "ssh://git@")
	known := knownhosts.Line([]string{knownhosts.Normalize(address)}, s.ed25519Key)
	other, otherKey := userKey(t)
	impostor := knownhosts.Line([]string{knownhosts.Normalize(address)}, other)
	of := func(key, known string) string {
		return sshCredentials(t, map[string]string{"ssh-privatekey": key, "known_hosts": known + "\n"})
	}
	for sentence, test := range map[string]struct {
		repo repo.Repo
		want string // "" if it is fetched
	}{
		"the server that is known":   {repo.Repo{URL: s.url + "/a.git", Credentials: of(string(s.key), known)}, ""},
		"one without the user's key": {repo.Repo{URL: s.url + "/a.git", Ref: "main", Credentials: of(string(otherKey), known)}, "unable to authenticate"},
		"one with another host key":  {repo.Repo{URL: s.url + "/a.git", Credentials: of(string(s.key), impostor)}, "key mismatch"},
		"one that nobody knows":      {repo.Repo{URL: s.url + "/a.git", Credentials: of(string(s.key), "")}, "key is unknown"},
		"a key that is none":         {repo.Repo{URL: s.url + "/a.git", Credentials: of("none", known)}, "ssh-privatekey is not a private key"},
		"no known hosts":             {repo.Repo{URL: s.url + "/a.git", Credentials: sshCredentials(t, map[string]string{"ssh-privatekey": string(s.key)})}, "the Secret has no key known_hosts"},
		"one that is not there":      {repo.Repo{URL: s.url + "/none.git", Credentials: of(string(s.key), known)}, "repository not found"},
	} {
		t.Run(sentence, func(t *testing.T) {
			dir := t.TempDir()
			log, err := run(t, dir, "", test.repo)
			if test.want != "" {
				if err == nil || !strings.Contains(log, test.want) {
					t.Errorf("got %q, want %q", log, test.want)
				}
				return
			}
			got, readErr := os.ReadFile(filepath.Join(dir, "file"))
			if err != nil || readErr != nil || string(got) != "by ssh" {
				t.Errorf("%v, %v: %q", err, readErr, got)
			}
			config, err := os.ReadFile(filepath.Join(dir, ".git", "config"))
			if err != nil || bytes.Contains(config, []byte("PRIVATE KEY")) || !bytes.Contains(config, fmt.Append(nil, s.url)) {
				t.Errorf("%v: %s", err, config)
			}
		})
	}
}
