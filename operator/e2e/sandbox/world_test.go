//go:build e2e && linux

package sandbox_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// The names and addresses of the world outside the cluster, which are those of the program untrusted. The node has the
// addresses, so that the way to them leads out of the Pod.
const (
	public   = "11.22.33.44"
	gitAt    = "11.22.33.55"
	plain    = "11.22.33.66"
	modelAt  = "11.22.33.77"
	public6  = "2606:4700::1111"
	metadata = "169.254.169.254"
	greeting = "HELLO"

	listed, inside, late = "api.example.com", "inside.example.com", "late.example.com"
	unlisted, gitName    = "other.example.com", "git.example.com"
	// modelName is that of operator/examples/agent.
	modelName = "model.example.com"
	// password is that of alice, to whom the git server gives its repositories, but for private.git: that is for whoever
	// has the token, whatever they are called.
	password  = "hunter2-is-secret"
	lentToken = "glpat-leased-and-secret"
	// asked is the file in which the git server keeps who has asked for what.
	asked = "asked"
)

// worldVariable says to a process of this binary that it is the world: the folder with its keys, and the address of the node.
const worldVariable = "ADMITKIT_E2E_WORLD"

// actAsWorld serves in the network of the node until it is killed.
func actAsWorld(text string) error {
	folder, node, _ := strings.Cut(text, " ")
	for _, address := range [][]string{{public + "/32"}, {gitAt + "/32"}, {plain + "/32"}, {modelAt + "/32"}, {metadata + "/32"}, {public6 + "/128", "nodad"}} {
		// Without nodad nobody can listen there until the kernel has found out that nobody else has the address.
		if out, err := exec.Command("ip", append([]string{"address", "replace", "dev", "lo"}, address...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("adding %s: %w: %s", address, err, out)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return err
	}
	ended := make(chan error, 100) // more than there are servers
	serve := func(address string, secure bool, handler http.Handler) {
		server := &http.Server{Addr: address, Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ReadHeaderTimeout: time.Minute}
		if secure {
			go func() { ended <- server.ListenAndServeTLS("", "") }()
			return
		}
		go func() { ended <- server.ListenAndServe() }()
	}
	for _, address := range []string{public + ":443", public + ":8443", "[" + public6 + "]:443", node + ":443"} {
		serve(address, true, http.HandlerFunc(greet))
	}
	for _, address := range []string{public + ":80", metadata + ":80"} {
		serve(address, false, http.HandlerFunc(greet))
	}
	git, err := gitServer(folder)
	if err != nil {
		return err
	}
	serve(gitAt+":443", true, git)
	for _, address := range []string{plain + ":443", plain + ":80", plain + ":22", "[" + public6 + "]:22", public + ":53"} {
		go func() { ended <- greetRaw(address) }()
	}
	for _, address := range []string{public + ":443", public + ":53"} {
		go func() { ended <- greetDatagrams(address) }()
	}
	go func() { ended <- serveSSH(folder, gitAt+":22") }()
	for _, address := range []string{public + ":443", gitAt + ":443", gitAt + ":22", plain + ":22", "[" + public6 + "]:443", node + ":443"} {
		if err := answers(address); err != nil {
			select {
			case why := <-ended:
				return errors.Join(err, why)
			default:
				return err
			}
		}
	}
	fmt.Println("serving")
	return <-ended
}

// answers waits until something listens.
func answers(address string) (err error) {
	for range 100 {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", address, time.Second); err == nil {
			return conn.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// greet says what it was asked for, and by which credential.
func greet(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" && r.ProtoMajor == 1 {
		w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("X-Greeting", greeting+" host="+r.Host)
		w.WriteHeader(http.StatusSwitchingProtocols)
		return
	}
	_, _ = fmt.Fprintf(w, "%s host=%s auth=%s\n", greeting, r.Host, r.Header.Get("Authorization"))
}

// greetRaw greets whoever connects, and whatever they say.
func greetRaw(address string) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(conn, greeting)
		_ = conn.Close()
	}
}

func greetDatagrams(address string) error {
	conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	for {
		_, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo([]byte(greeting), from)
	}
}

// gitServer is git's own, for who has the password.
func gitServer(folder string) (http.Handler, error) {
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(folder, asked), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), InheritEnv: []string{"PATH"},
		Env: []string{"GIT_PROJECT_ROOT=" + folder, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, got, _ := r.BasicAuth()
		_, _ = fmt.Fprintf(log, "%q asks for %s\n", user, r.URL)
		may := user == "alice" && got == password
		if strings.HasPrefix(r.URL.Path, "/private.git/") {
			may = got == lentToken
		}
		if !may {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}), nil
}

// serveSSH gives the repositories to whoever has the key, by git's own program.
func serveSSH(folder, address string) error {
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			panic(err)
		}
		return text
	}
	host, err := ssh.ParsePrivateKey(read("ssh_host_key"))
	if err != nil {
		return err
	}
	authorized, _, _, _, err := ssh.ParseAuthorizedKey(read("authorized_keys"))
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(authorized.Marshal()) {
			return nil, fmt.Errorf("another key")
		}
		return nil, nil //nolint:nilnil // there are no permissions
	}}
	config.AddHostKey(host)
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go serveSSHClient(folder, conn, config)
	}
}

func serveSSHClient(folder string, conn net.Conn, config *ssh.ServerConfig) {
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		go func() {
			for request := range requests {
				named := uploads.FindSubmatch(request.Payload)
				_ = request.Reply(request.Type == "exec" && named != nil, nil)
				if request.Type == "exec" && named != nil {
					go upload(channel, filepath.Join(folder, string(named[1])))
				}
			}
		}()
	}
}

var uploads = regexp.MustCompile(`^....git-upload-pack '/([a-z]+\.git)'$`)

func upload(channel ssh.Channel, repository string) {
	defer func() { _ = channel.Close() }()
	cmd := exec.Command("git", "-c", "safe.directory=*", "upload-pack", repository)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return
	}
	cmd.Stdout = channel
	go func() {
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	}()
	code := byte(0)
	if err := cmd.Run(); err != nil {
		code = 1
	}
	_, _ = channel.SendRequest("exit-status", false, []byte{0, 0, 0, code})
}
