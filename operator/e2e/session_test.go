//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

var sessionImage = cmp.Or(os.Getenv("E2E_RECORDER_IMAGE"), "ghcr.io/admitkit/recorder:dev")

// recorded is the namespace in which the shipped release records sessions. plain has the
// same Pods without the recorder.
const (
	recorded = prefix + "recorded"
	plain    = prefix + "plain"
)

// sessionKey is the key of tickets of this run.
var sessionKey = func() protocol.Key {
	key := make([]byte, protocol.MinKey)
	_, _ = rand.Read(key) // never fails
	return protocol.Key{Current: []byte(hex.EncodeToString(key))}
}()

// recordings is the folder of the volume with the recordings, on the node. It goes with the cluster:
// whose folder holds anything else is not taken for another one.
func recordings() collector.Folder {
	return collector.Folder(filepath.Join(clusterDir, "lib", "e2e-sessions"))
}

// sessionValues are the values with which a release records sessions: on a node of this
// machine, from where the test reads the volume.
func sessionValues() []string {
	if clusterDir == "" {
		return nil
	}
	colon := strings.LastIndex(sessionImage, ":")
	return []string{
		"sessions.enabled=true", "sessions.namespaces={" + recorded + "}", "sessions.image.repository=" + sessionImage[:colon], "sessions.image.tag=" + sessionImage[colon+1:],
		"audit.objects.foldAfter=-1", // a test makes hundreds of sessions in a minute
		"sessions.evict=true",
		"sessions.volume.persistentVolumeClaim.claimName=sessions", "sessions.api.enabled=true",
	}
}

// prepareSessions makes what a release needs that records sessions: the key, and a volume
// that all servers share.
func prepareSessions(ctx context.Context, r release) error {
	if clusterDir == "" {
		return nil
	}
	if err := errors.Join(os.MkdirAll(string(recordings()), 0o700), makeNamespace(ctx, recorded), makeNamespace(ctx, plain)); err != nil {
		return err
	}
	nodes, err := clientset.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	host := func(n corev1.Node) string { return n.Labels[corev1.LabelHostname] }
	capacity := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace(), Name: "admitkit-session-key"}, Data: map[string][]byte{"key": sessionKey.Current}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: prefix + "sessions"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: capacity, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: r.namespace(), Name: "sessions"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/lib/e2e-sessions"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host(nodes.Items[0])}}},
			}}}},
		}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace(), Name: "sessions"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: new(""), VolumeName: prefix + "sessions", Resources: corev1.VolumeResourceRequirements{Requests: capacity},
		}},
	} {
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, object)); err != nil {
			return err
		}
	}
	return nil
}

// forgetSessions removes what is not in a namespace of the tests.
func forgetSessions(ctx context.Context) error {
	return client.IgnoreNotFound(admin.Delete(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: prefix + "sessions"}}))
}

// sessionCase is what somebody does by kubectl exec, in a Pod with the recorder and in one
// without.
type sessionCase struct {
	terminal bool
	stdin    bool
	command  []string
	play     func(c *kubectlClient)
	// after is where the comparison of what is printed begins, if what comes before depends
	// on timing.
	after string
	pod   string
	// spdy says that the short form tries it by SPDY, too.
	spdy bool
}

func script(text string) []string { return []string{"sh", "-c", text} }

func sessionCases(t *testing.T) map[string]sessionCase {
	t.Helper()
	big := testkit.Long(100, 5)
	cases := map[string]sessionCase{
		"it prints to both":                   {spdy: true, command: script("echo out; echo err >&2; exit 3")},
		"it is killed":                        {command: script("kill -KILL $$")},
		"arguments":                           {command: []string{"sh", "-c", `echo "$0" "$@" $#; id -u; pwd`, "zero", "b c", "", "--", "-x", "*"}},
		"a script from standard input":        {stdin: true, command: []string{"sh"}, play: func(c *kubectlClient) { c.send("echo one; exit 5\n"); c.closeInput() }},
		"binary data in and out":              {spdy: true, stdin: true, command: []string{"cat"}, play: func(c *kubectlClient) { c.send(testkit.Noise(5 << 20)); c.closeInput() }},
		"the end of the input is not the end": {stdin: true, command: script("cat | wc -c; sleep 0.1; echo later"), play: func(c *kubectlClient) { c.send("12345"); c.closeInput() }},
		"much output":                         {command: script(fmt.Sprintf("head -c %d000000 /dev/zero", big))},
		"much output on a terminal":           {terminal: true, command: script(fmt.Sprintf("head -c %d000000 /dev/zero | tr '\\0' x | fold -w 99", big))},
		"it is on a terminal":                 {terminal: true, command: script("test -t 0 && test -t 1 && test -t 2 && echo yes >/dev/tty; echo $TERM")},
		"it exits on a terminal":              {terminal: true, command: script("exit 43")},
		"the window has its size, and changes": {
			spdy: true, terminal: true, after: "ready", command: script(`until [ "$(stty size 2>/dev/null)" = "24 80" ]; do sleep 0.02; done; echo ready; until [ "$(stty size 2>/dev/null)" = "50 132" ]; do sleep 0.02; done; stty size; exit 9`),
			play: func(c *kubectlClient) { c.expect("ready"); c.resize(50, 132); c.expect("50 132") },
		},
		"Ctrl-C":                   {terminal: true, command: script("trap 'echo got; exit 3' INT; echo ready; while :; do sleep 0.02; done"), play: typed("ready", "\x03")},
		"Ctrl-C without a handler": {terminal: true, command: script("echo ready; exec sleep 1000"), play: typed("ready", "\x03")},
		"Ctrl-D":                   {spdy: true, terminal: true, command: script("echo ready; exec cat"), play: typed("ready", "hello\n", "hello\r\nhello\r\n", "\x04")},
		"Ctrl-Z and job control": {
			terminal: true, command: script(`set -m; sh -c 'echo ready; exec cat'; echo status $?; fg; echo end $?; exit 11`),
			play: typed("ready", "hello\n", "hello\r\nhello\r\n", "\x1a", "exec cat\"\r\n", "there\n", "there\r\nthere\r\n", "\x04", "end"),
		},
		"UTF-8 in two writes":           {terminal: true, command: script(`printf '\303'; sleep 0.1; printf '\251\342'; sleep 0.1; printf '\202\254\n'`)},
		"a password":                    {terminal: true, command: script("stty -echo; printf 'Password: '; read x; stty echo; echo; echo ${#x}"), play: typed("Password: ", "secret\n", "6")},
		"a pager":                       {terminal: true, command: script("seq 1000 | less"), after: "--never--", play: typed("20", " ", "40", "G", "1000", "q")},
		"an editor on the whole screen": {terminal: true, after: "--saved--", command: script("vi f; echo --saved--; cat f; rm f"), play: typed("~", "i", "I f", "hello", "hello", "\x1b", "- f", ":wq\r", "--saved--")},
		"no shell, and nothing else":    {pod: "scratch", command: []string{"/admitkit", "manifests", "--image=x", "--namespace=apps", "--webhook-namespace=system"}},
	}
	codes := []int{0, 1, 2, 42, 125, 126, 127, 128, 130, 255}
	if !testing.Short() {
		codes = nil
		for code := range 256 {
			codes = append(codes, code)
		}
	}
	for _, code := range codes {
		cases[fmt.Sprintf("it exits with %d", code)] = sessionCase{command: script(fmt.Sprintf("exit %d", code))}
	}
	return cases
}

// sessionPods makes two Pods with a shell and one without anything, under Pod Security's
// restricted profile and without a writable root.
func sessionPods(t *testing.T, namespace string) map[string]*corev1.Pod {
	t.Helper()
	return map[string]*corev1.Pod{
		"shell":  sessionPod(t, namespace, "shell", func(*corev1.PodSpec) {}),
		"copies": sessionPod(t, namespace, "copies", func(*corev1.PodSpec) {}),
		"scratch": sessionPod(t, namespace, "scratch", func(spec *corev1.PodSpec) {
			c := &spec.Containers[0]
			c.Image, c.Stdin, c.Command = image, true, nil
			c.Args = []string{"review", "-f", "-", "--namespace=x"} // which waits for its input
		}),
	}
}

// sessionPod makes a Pod with a shell, unless it is changed, whose one writable folder is
// /work. It returns when the Pod is ready.
func sessionPod(t *testing.T, namespace, name string, change func(*corev1.PodSpec)) *corev1.Pod {
	t.Helper()
	pod := makeSessionPod(t, namespace, name, change)
	awaitReady(t, pod)
	return pod
}

func makeSessionPod(t *testing.T, namespace, name string, change func(*corev1.PodSpec)) *corev1.Pod {
	t.Helper()
	spec := restricted("sleep", "86400")
	c := &spec.Containers[0]
	c.SecurityContext.ReadOnlyRootFilesystem = new(true)
	c.WorkingDir, c.VolumeMounts = "/work", []corev1.VolumeMount{{Name: "work", MountPath: "/work"}}
	spec.SecurityContext.RunAsUser, spec.SecurityContext.FSGroup = new(int64(1234)), new(int64(1234))
	spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	change(&spec)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	if err := admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func awaitReady(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := command(t.Context(), adminKubeconfig, "kubectl", "wait", "--namespace", pod.Namespace, "--for=condition=Ready", "pod/"+pod.Name, "--timeout=1m"); err != nil {
		t.Fatal(err)
	}
}

// needsRecordings skips a test on a cluster whose node is elsewhere, and installs.
func needsRecordings(t *testing.T) {
	t.Helper()
	if clusterDir == "" {
		t.Skip("the test reads the volume of the recordings on the node: it needs a cluster of make cluster-up")
	}
	shipped.installed(t)
}

func TestAnExecBehavesAsWithoutTheRecorder(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	sessionPods(t, plain)
	pods := sessionPods(t, recorded)
	var mu sync.Mutex
	onRecord := map[string]func(*testing.T){} // once it is sealed
	var cases, wrong atomic.Int64
	t.Run("in each case", func(t *testing.T) {
		run := func(name string, test func(*testing.T)) {
			t.Run(name, func(t *testing.T) {
				parallel(t)
				cases.Add(1) // those that -run leaves out do not count
				defer func() {
					if t.Failed() {
						wrong.Add(1)
					}
				}()
				test(t)
			})
		}
		for name, c := range sessionCases(t) {
			transports := []string{"true", "false"}
			// The API server makes one of the other, so the short form tries SPDY by a few cases.
			if strings.HasPrefix(name, "it exits with ") || testing.Short() && !c.spdy {
				transports = transports[:1]
			}
			run(name, func(t *testing.T) {
				for _, websocket := range transports {
					check := compareSessions(t, pods[cmp.Or(c.pod, "shell")], &c, websocket)
					mu.Lock()
					onRecord[name+", WebSockets "+websocket] = check
					mu.Unlock()
				}
			})
		}
		run("kubectl cp", func(t *testing.T) {
			for _, websocket := range []string{"true", "false"}[:testkit.Long(2, 1)] {
				compareCopies(t, pods["copies"], websocket)
			}
		})
	})
	for name, check := range onRecord {
		if !t.Run("on record: "+name, check) {
			wrong.Add(1)
		}
	}
	left := leftProcesses(t, "shell") + leftProcesses(t, "copies")
	testkit.Figure("session.cases", float64(cases.Load()), "cases")
	testkit.Figure("session.wrong", float64(wrong.Load()), "cases")
	testkit.Figure("session.left_processes", float64(left), "processes")
	if left > 0 {
		t.Errorf("%d processes are left", left)
	}
}

// leftProcesses counts what sessions have left in a Pod.
func leftProcesses(t *testing.T, pod string) int {
	t.Helper()
	out, err := command(t.Context(), adminKubeconfig, "kubectl", "exec", "--namespace", recorded, pod, "--", "sh", "-c",
		`for p in /proc/[0-9]*; do n=${p#/proc/}; [ $n = 1 ] || [ $n = $$ ] || [ $n = $PPID ] || tr '\0' ' ' <$p/cmdline 2>/dev/null && echo; done`)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	left = slices.DeleteFunc(left, func(line string) bool { return strings.HasPrefix(line, "tr ") || strings.TrimSpace(line) == "" })
	for _, line := range left {
		t.Logf("left: %s", line)
	}
	return len(left)
}

// compareSessions runs a case without the recorder and with it. It returns what checks the recording.
func compareSessions(t *testing.T, pod *corev1.Pod, c *sessionCase, websocket string) (check func(*testing.T)) {
	t.Helper()
	without := c.run(t, plain, websocket)
	before := sessionsOf(t, pod, c.command...)
	with := c.run(t, recorded, websocket)
	if with.code != without.code {
		t.Errorf("WebSockets %s: the exit code is %d, and %d without the recorder", websocket, with.code, without.code)
	}
	got, want := with.stdout, without.stdout
	if c.after != "" {
		_, got, _ = bytes.Cut(got, []byte(c.after))
		_, want, _ = bytes.Cut(want, []byte(c.after))
	}
	if !bytes.Equal(got, want) {
		t.Errorf("WebSockets %s: printed %s, and without the recorder %s", websocket, brief(got), brief(want))
	}
	if !bytes.Equal(with.stderr, without.stderr) {
		t.Errorf("WebSockets %s: stderr is %s, and without the recorder %s", websocket, brief(with.stderr), brief(without.stderr))
	}
	now := slices.DeleteFunc(sessionsOf(t, pod, c.command...), func(id string) bool { return slices.Contains(before, id) })
	if len(now) != 1 {
		t.Fatalf("%d sessions are recorded", len(now))
	}
	return func(t *testing.T) { checkRecording(t, now[0], c, with) }
}

// checkRecording compares a recording with what the client saw, and with its AuditEvent.
func checkRecording(t *testing.T, id string, c *sessionCase, seen outcome) {
	t.Helper()
	seal, err := sealed(t, id)
	if err != nil {
		t.Fatal(err)
	}
	if seal.End.Code != seen.code {
		t.Errorf("the recording ends with %d, the session with %d", seal.End.Code, seen.code)
	}
	var output bytes.Buffer
	sums := map[string]string{}
	err = recordings().Frames(id, func(f *protocol.Frame) error {
		switch f.Type {
		case protocol.Output:
			output.Write(f.Data)
		case protocol.Stream:
			var sum protocol.StreamSum
			if err := json.Unmarshal(f.Data, &sum); err != nil {
				return err
			}
			sums[sum.Name] = sum.SHA256
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.terminal && !bytes.Equal(output.Bytes(), seen.stdout) {
		t.Errorf("the recording has %s, the client saw %s", brief(output.Bytes()), brief(seen.stdout))
	}
	if sum := sha256.Sum256(seen.stdout); !c.terminal && sums["stdout"] != hex.EncodeToString(sum[:]) {
		t.Errorf("the recording has %v", sums)
	}
	testkit.Succeeds(t, time.Minute, "the AuditEvent says where the recording is", func(ctx context.Context) error { // after the seal
		var event v1alpha1.AuditEvent
		if err := admin.Get(ctx, client.ObjectKey{Name: id}, &event); err != nil {
			return err
		}
		if s := event.Status.Session; s == nil || s.SHA256 != seal.SHA256 || int(s.ExitCode) != seen.code || !slices.Equal(event.Spec.Command, c.command) {
			return fmt.Errorf("it has %+v of %q", s, event.Spec.Command)
		}
		return nil
	})
}

// compareCopies copies a file into the Pod and back.
func compareCopies(t *testing.T, pod *corev1.Pod, websocket string) {
	size := testkit.Long[int64](1<<30, 20<<20)
	folder := t.TempDir()
	from := filepath.Join(folder, "from")
	want := write(t, from, size)
	for _, namespace := range []string{plain, recorded} {
		before := sessionIDs(t)
		to := filepath.Join(folder, namespace)
		for _, args := range [][]string{{from, pod.Name + ":/work/copy"}, {pod.Name + ":/work/copy", to}} {
			cmd := kubectl(websocket, append([]string{"cp", "--namespace", namespace, "--retries=0"}, args...)...)
			began := time.Now()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", cmd, err, out)
			}
			testkit.Figure("session.copy_mb_s."+strings.TrimPrefix(namespace, prefix), float64(size)/1e6/time.Since(began).Seconds(), "MB/s")
		}
		if got := sumOf(t, to); got != want {
			t.Errorf("%s: the copy of a copy has the sum %s, not %s", namespace, got, want)
		}
		if namespace != recorded {
			continue
		}
		entries := 0
		for id, valid := range sessionIDs(t) {
			redeemed, err := collector.ReadRedeemed(t.Context(), recordings(), id)
			if !valid || before[id] || err != nil || redeemed.Ticket.PodUID != string(pod.UID) {
				continue
			}
			if _, err := sealed(t, id); err != nil { // tar may end after kubectl
				t.Fatal(err)
			}
			err = recordings().Frames(id, func(f *protocol.Frame) error {
				var file protocol.FileSum
				if f.Type != protocol.File {
					return nil
				}
				entries++
				if err := json.Unmarshal(f.Data, &file); err != nil || file.Bytes != size || file.SHA256 != want {
					return fmt.Errorf("an entry is %s: %w", f.Data, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		if entries != 2 {
			t.Errorf("%d files are on record", entries)
		}
	}
}

// write writes a file of noise and returns its sum.
func write(t *testing.T, path string, size int64) string {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, hash), io.LimitReader(rand.Reader, size))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func sessionIDs(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(string(recordings()))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, e := range entries {
		ids[e.Name()] = protocol.ValidID(e.Name())
	}
	return ids
}

// kubectlClient is a kubectl exec, on a terminal or on pipes.
type kubectlClient struct {
	t        *testing.T
	cmd      *exec.Cmd
	terminal *os.File
	stdin    io.WriteCloser

	mu             sync.Mutex
	changed        *sync.Cond
	stdout, stderr bytes.Buffer
	seen           int  // of stdout, by expect
	inVain         bool // expect has waited in vain
	readers        sync.WaitGroup
}

// outcome is what a client has seen.
type outcome struct {
	code           int
	stdout, stderr []byte
}

func kubectl(websocket string, args ...string) *exec.Cmd {
	return user{adminKubeconfig}.kubectlBy(websocket, args...)
}

// kubectlBy is kubectl with one transport or the other.
func (u user) kubectlBy(websocket string, args ...string) *exec.Cmd {
	cmd := exec.Command("kubectl", args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+u.kubeconfig, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+websocket, "TERM=vt100")
	return cmd
}

// onTerminal begins a kubectl on a terminal.
func (u user) onTerminal(t *testing.T, args ...string) *kubectlClient {
	t.Helper()
	c := newKubectlClient(t, u.kubectlBy("true", args...))
	c.start(true)
	return c
}

// enter begins a session on a terminal in a Pod of the recorded namespace.
func (u user) enter(t *testing.T, pod string, command ...string) *kubectlClient {
	t.Helper()
	return u.onTerminal(t, append([]string{"exec", "-it", "--namespace", recorded, pod, "--"}, command...)...)
}

func (s *sessionCase) run(t *testing.T, namespace, websocket string) outcome {
	t.Helper()
	args := []string{"exec", "--namespace", namespace, cmp.Or(s.pod, "shell")}
	switch {
	case s.terminal:
		args = append(args, "-it")
	case s.stdin:
		args = append(args, "-i")
	}
	c := newKubectlClient(t, kubectl(websocket, append(append(args, "--"), s.command...)...))
	c.start(s.terminal)
	if s.play != nil {
		s.play(c)
	}
	return c.end()
}

func newKubectlClient(t *testing.T, cmd *exec.Cmd) *kubectlClient {
	c := &kubectlClient{t: t, cmd: cmd}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// end waits for the end, at most for a while.
func (c *kubectlClient) end() outcome {
	c.t.Helper()
	timer := time.AfterFunc(2*time.Minute, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	if c.terminal != nil {
		c.readers.Wait() // the terminal ends with the process
	}
	err := c.cmd.Wait()
	c.readers.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		c.t.Error(err)
	}
	return outcome{c.cmd.ProcessState.ExitCode(), c.stdout.Bytes(), c.stderr.Bytes()}
}

func (c *kubectlClient) start(terminal bool) {
	c.t.Helper()
	if terminal {
		stderr, err := c.cmd.StderrPipe()
		if err == nil {
			c.terminal, err = pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 80})
		}
		if err != nil {
			c.t.Fatal(err)
		}
		c.stdin = c.terminal
		c.readers.Go(func() { c.read(c.terminal, &c.stdout) })
		c.readers.Go(func() { c.read(stderr, &c.stderr) })
		return
	}
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *kubectlClient) read(from io.Reader, into *bytes.Buffer) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		c.mu.Lock()
		_, _ = into.Write(buffer[:n])
		c.changed.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// expect waits until the text is printed on the terminal, after what was expected before.
func (c *kubectlClient) expect(text string) {
	c.t.Helper()
	const limit = time.Minute
	timer := time.AfterFunc(limit, c.changed.Broadcast)
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for began := time.Now(); !c.inVain; c.changed.Wait() {
		if at := bytes.Index(c.stdout.Bytes()[c.seen:], []byte(text)); at >= 0 {
			c.seen += at + len(text)
			return
		}
		if time.Since(began) >= limit {
			c.t.Errorf("waited in vain for %q after %q", text, c.stdout.Bytes()[max(0, c.stdout.Len()-300):])
			_ = c.cmd.Process.Kill()
			c.inVain = true
		}
	}
}

// hasPrinted reports whether the text is on the terminal.
func (c *kubectlClient) hasPrinted(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.stdout.Bytes(), []byte(text))
}

func (c *kubectlClient) send(text string) { _, _ = io.WriteString(c.stdin, text) } // who waits in vain says so

func (c *kubectlClient) closeInput() { _ = c.stdin.Close() }

func (c *kubectlClient) resize(rows, cols uint16) {
	c.t.Helper()
	if err := pty.Setsize(c.terminal, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		c.t.Error(err)
	}
}

// typed returns a play of texts that are awaited and texts that are typed.
func typed(steps ...string) func(c *kubectlClient) {
	return func(c *kubectlClient) {
		for i, step := range steps {
			if i%2 == 0 {
				c.expect(step)
			} else {
				c.send(step)
			}
		}
	}
}

func brief(text []byte) string {
	if len(text) <= 400 {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q...%q (%d bytes)", text[:200], text[len(text)-200:], len(text))
}
