package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// memoryLimit is that of the chart.
const memoryLimit = 256 << 20

// attacked is a user's operator that runs as in the chart's Pod, on a real API server.
type attacked struct {
	clientset kubernetes.Interface
	run       func() *testkit.Process
	cgroup    *cgroup
}

func newAttacked(t *testing.T) *attacked {
	t.Helper()
	limit := newCgroup(t)
	cluster := controlplane.Run(t, controlplane.Options{})
	binary := os.Getenv("ADMITKIT_ATTACKED") // another version, to compare
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "sample")
		if err := testkit.Build(t.Context(), binary, "../testing/e2e/sample"); err != nil {
			t.Fatal(err)
		}
	}
	port := freeport.For(t)
	return &attacked{clientset: kubernetes.NewForConfigOrDie(cluster.Config()), cgroup: limit, run: func() *testkit.Process {
		return testkit.Run(t, limit.command(binary, "start", "--namespace=default", "--host=127.0.0.1", fmt.Sprintf("--port=%d", port),
			"--kubeconfig="+cluster.Admin().KubeConfig, "--health-address=", "--metrics-address=", "--drain-period=10ms"))
	}}
}

// start starts the operator and returns an attack on it.
func (a *attacked) start(t *testing.T) (*testkit.Process, *attack) {
	t.Helper()
	server := a.run()
	testkit.Eventually(t, "the server answers", func(ctx context.Context) bool { return a.admission(ctx) == nil })
	config, err := a.clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "admitkit.default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(*config.Webhooks[0].ClientConfig.URL)
	if err != nil {
		t.Fatal(err)
	}
	return server, &attack{address: target.Host, path: target.Path}
}

// admission has the API server send one admission.
func (a *attacked) admission(ctx context.Context) error {
	pod, err := a.clientset.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "real-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && pod.Annotations["sample.admitkit.dev/stamp-1"] == "" {
		return errors.New("the Pod is not stamped")
	}
	return err
}

// TestWhatAStalledConnectionTakes prints what docs/operations.md says, the kernel's part
// included.
func TestWhatAStalledConnectionTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server for each kind of connection")
	}
	a := newAttacked(t)
	take := func(name string, connections, each int, stall func(*attack, context.Context)) {
		server, attack := a.start(t) // another one may have memory that it does not use any more
		ctx, stop := context.WithCancel(t.Context())
		before := a.cgroup.number(t, a.cgroup.usage)
		for range connections {
			attack.Go(func() { stall(attack, ctx) })
		}
		time.Sleep(3 * time.Second) // they have arrived, and the first deadline is not over
		testkit.Figure(name, float64(a.cgroup.number(t, a.cgroup.usage)-before)/float64(connections*each)/1024, "KiB")
		stop()
		attack.Wait()
		server.Stop(t)
	}
	for point, name := range points {
		take("engine.conn_"+name+"_kb", 400, 1, func(a *attack, ctx context.Context) { a.stall(ctx, point) })
	}
	take("engine.conn_http2_kb", 400, 1, func(a *attack, ctx context.Context) { a.stallStreams(ctx, 0, false) })
	take("engine.stream_kb", 200, 4, func(a *attack, ctx context.Context) { a.stallStreams(ctx, 4, true) })
}

// TestAServerUnderAttackAnswersEveryRealAdmission has those who reach the port of a
// server with 256 MiB of memory try to occupy everything that it has, from three
// addresses. Meanwhile a real API server sends 20 admissions a second.
func TestAServerUnderAttackAnswersEveryRealAdmission(t *testing.T) {
	attacked := newAttacked(t)
	server, attack := attacked.start(t)
	if !server.Output.HasLine("the memory of this process is limited", strconv.Itoa(memoryLimit / 5 * 4)[:6]) {
		t.Error("the program does not know its memory limit")
	}
	ctx, stop := context.WithTimeout(t.Context(), testkit.Long(time.Minute, 15*time.Second))
	defer stop()
	attack.begin(ctx)
	var admissions sync.WaitGroup
	var sent, failed atomic.Int64
	var slowest atomic.Int64
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		admissions.Go(func() {
			began := time.Now()
			patience, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer stop()
			if err := attacked.admission(patience); err != nil {
				failed.Add(1)
				t.Logf("after %s: %v", time.Since(began), err)
			}
			sent.Add(1)
			for took := int64(time.Since(began)); ; {
				if before := slowest.Load(); before >= took || slowest.CompareAndSwap(before, took) {
					break
				}
			}
		})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	admissions.Wait()
	attack.Wait()
	t.Logf("%d real admissions, the slowest in %s; attackers made %s", sent.Load(), time.Duration(slowest.Load()), attack)
	testkit.Figure("engine.stall_failed", float64(failed.Load()), "requests")
	testkit.Figure("engine.peak_mb", float64(attacked.cgroup.number(t, attacked.cgroup.peak))/(1<<20), "MiB")
	if failed.Load() > 0 {
		t.Errorf("%d of %d real admissions failed", failed.Load(), sent.Load())
	}
	if kills := attacked.cgroup.killed(t); kills > 0 {
		t.Errorf("the kernel killed the server, which ran out of memory: %d times", kills)
	}
	if attack.connections.Load() < int64(testkit.Long(5000, 1000)) || attack.streams.Load() < int64(testkit.Long(20_000, 4000)) {
		t.Errorf("the attack was too weak")
	}
	server.Stop(t)
}

// attack is what somebody does who reaches the port.
type attack struct {
	sync.WaitGroup
	address, path string
	next          atomic.Int64

	connections, streams, bodies, pods, refused atomic.Int64
}

func (a *attack) String() string {
	return fmt.Sprintf("%d stalled connections, %d stalled streams, %d stalled bodies of 8 MiB, %d hostile Pods, of which %d were refused",
		a.connections.Load(), a.streams.Load(), a.bodies.Load(), a.pods.Load(), a.refused.Load())
}

// begin attacks until ctx ends, with so many of each kind at a time.
func (a *attack) begin(ctx context.Context) {
	for i := range testkit.Long(5000, 1000) {
		a.repeat(ctx, 20*time.Second, func() { a.stall(ctx, i%len(points)) })
	}
	for i := range testkit.Long(200, 40) {
		a.repeat(ctx, 5*time.Second, func() { a.stallStreams(ctx, 100, i%2 == 0) })
	}
	for range testkit.Long(64, 16) {
		a.repeat(ctx, 5*time.Second, func() { a.stallBody(ctx) })
	}
	bodies := hostile()
	for i := range testkit.Long(200, 40) {
		a.repeat(ctx, 5*time.Second, func() { a.send(ctx, bodies[i%len(bodies)]) })
	}
}

// repeat does it again and again, since attackers do not give up. The pause keeps the
// processors for the server and the API server.
func (a *attack) repeat(ctx context.Context, pause time.Duration, do func()) {
	a.Go(func() {
		for ctx.Err() == nil {
			do()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

// dial connects from one of three addresses.
func (a *attack) dial(ctx context.Context) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+a.next.Add(1)%3))}
	conn, err := (&net.Dialer{LocalAddr: from, Timeout: 5 * time.Second}).DialContext(ctx, "tcp", a.address)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	return conn, err
}

func (a *attack) dialTLS(ctx context.Context, protocol string) (*tls.Conn, error) {
	conn, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// wait returns when the server closes the connection.
func wait(conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}

// points are where connections stall.
var points = []string{"tcp", "handshake", "tls", "header", "body"}

// stall opens a connection and stops at a point.
func (a *attack) stall(ctx context.Context, point int) {
	a.connections.Add(1)
	var conn net.Conn
	var err error
	if point < 2 {
		conn, err = a.dial(ctx)
	} else {
		conn, err = a.dialTLS(ctx, "http/1.1")
	}
	if err != nil {
		return
	}
	header := "POST " + a.path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n"
	_, _ = io.WriteString(conn, []string{
		"",                             // after TCP's handshake
		"\x16\x03\x01\x02\x00\x01\x00", // in TLS's
		"",                             // after it
		header,                         // in the header
		header + "\r\n{\"request\"",    // in the body
	}[point])
	wait(conn)
}

// stallStreams opens an HTTP/2 connection, and sends the header and the first byte of
// a request on each of its streams, if known after a complete admission.
func (a *attack) stallStreams(ctx context.Context, streams uint32, known bool) {
	conn, err := a.dialTLS(ctx, "h2")
	if err != nil {
		return
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil || framer.WriteSettingsAck() != nil {
		return
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	small := hostilePod("{}", 1)
	for i := range streams {
		block.Reset()
		length, data, end := "200000", "{", false
		if i == 0 && known {
			length, data, end = strconv.Itoa(len(small)), small, true
		}
		for _, field := range [][2]string{
			{":method", "POST"},
			{":scheme", "https"},
			{":authority", a.address},
			{":path", a.path},
			{"content-type", "application/json"},
			{"content-length", length},
		} {
			if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
				return
			}
		}
		if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block.Bytes(), EndHeaders: true}) != nil ||
			framer.WriteData(2*i+1, end, []byte(data)) != nil {
			break
		}
		a.streams.Add(1)
	}
	wait(conn)
}

// stallBody sends a body of 8 MiB except its last byte.
func (a *attack) stallBody(ctx context.Context) {
	conn, err := a.dialTLS(ctx, "http/1.1")
	if err != nil {
		return
	}
	const size = 8 << 20
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", a.path, size)
	_, _ = conn.Write(bytes.Repeat([]byte(" "), size-1))
	a.bodies.Add(1)
	wait(conn)
}

// send sends a small review, so that the connection has completed an admission, and
// then a hostile one.
func (a *attack) send(ctx context.Context, body string) {
	conn, err := a.dialTLS(ctx, "http/1.1")
	if err != nil {
		return
	}
	defer conn.Close()
	transport := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	defer transport.CloseIdleConnections()
	for _, body := range []string{hostilePod("{}", 1), body} {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+a.address+a.path+"?timeout=10s", strings.NewReader(body))
		if err != nil {
			return
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(request)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if len(body) < 1<<10 {
			continue
		}
		a.pods.Add(1)
		if response.StatusCode != http.StatusOK {
			a.refused.Add(1)
		}
	}
}

// hostile returns reviews of Pods of many empty containers: one as any user can cause
// an API server to send it (172 KB for the user, 7.6 MiB with the defaults), one of a
// MiB that says less, and one that is small enough to be decoded.
func hostile() []string {
	return []string{
		hostilePod(`{"name":"","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always"}`, 58_823),
		hostilePod(`{}`, 349_000),
		hostilePod(`{}`, 10_000),
	}
}

// cgroup limits the memory of a program.
type cgroup struct{ dir, limit, usage, peak, kills string }

// newCgroup makes a cgroup of either version. It is removed when the test ends.
func newCgroup(t *testing.T) *cgroup {
	t.Helper()
	c := &cgroup{limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", peak: "memory.max_usage_in_bytes", kills: "memory.oom_control"}
	root := "/sys/fs/cgroup/memory"
	if controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(controllers), "memory") {
		root = "/sys/fs/cgroup"
		c.limit, c.usage, c.peak, c.kills = "memory.max", "memory.current", "memory.peak", "memory.events"
		_ = os.WriteFile(root+"/cgroup.subtree_control", []byte("+memory"), 0o600) // the limit shows whether it is needed
	}
	dir, err := os.MkdirTemp(root, "admitkit-attack-")
	if err == nil {
		c.dir = dir
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		err = os.WriteFile(filepath.Join(dir, c.limit), []byte(strconv.Itoa(memoryLimit)), 0o600)
	}
	if err != nil {
		fmt.Printf("SKIPPED %s: it needs a cgroup: run it as root on Linux, where cgroups can be made: %v\n", t.Name(), err)
		t.Skip(err)
	}
	return c
}

// command returns one that runs a program in the cgroup from its first moment.
func (c *cgroup) command(program string, args ...string) *exec.Cmd {
	return exec.Command("/bin/sh", append([]string{"-c", `echo $$ > ` + filepath.Join(c.dir, "cgroup.procs") + ` && exec "$0" "$@"`, program}, args...)...)
}

func (c *cgroup) read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

func (c *cgroup) number(t *testing.T, file string) int64 {
	t.Helper()
	number, err := strconv.ParseInt(c.read(t, file), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return number
}

// killed returns how often the kernel has ended the program because of the limit.
func (c *cgroup) killed(t *testing.T) int64 {
	t.Helper()
	for line := range strings.Lines(c.read(t, c.kills)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, err := strconv.ParseInt(count, 10, 64)
			if err != nil {
				t.Error(err)
			}
			return kills
		}
	}
	t.Errorf("%s does not say how many processes were killed", c.kills)
	return 0
}
