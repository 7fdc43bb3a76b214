//go:build linux

package redirect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const proxyUID, port, brokerPort = 1337, 15001, 8443

// In a network of its own, whose only way out leads to another one, where somebody answers.
func TestConnectionsGoToTheProxyWhoeverMakesThem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a network of its own")
	}
	done := make(chan struct{})
	go func() { // the thread is not given back, and so ends with the goroutine
		defer close(done)
		runtime.LockOSThread()
		inANetwork(t)
	}()
	<-done
}

func inANetwork(t *testing.T) {
	outside, inside := newNetwork(t), newNetwork(t)
	ip(t, "link set lo up", "link add d0 type veth peer name d1", "addr add 192.0.2.2/24 dev d0", "link set d0 up",
		fmt.Sprintf("link set d1 netns /proc/%d/fd/%d", os.Getpid(), outside.Fd()))
	enter(t, outside)
	ip(t, "addr add 192.0.2.9/24 dev d1", "link set d1 up")
	for _, port := range []int{80, 443, 8080, brokerPort} {
		serve(t, fmt.Sprint("192.0.2.9:", port), "outside")
	}
	enter(t, inside)
	serve(t, fmt.Sprint("127.0.0.1:", port), "proxy")
	if got := reaches(t, 1000, "192.0.2.9:443"); got != "outside" {
		t.Errorf("without rules a connection gets %q", got)
	}
	for range 2 { // the second replaces the first
		if err := Install(Options{Port: port, ProxyUID: proxyUID, BrokerPort: brokerPort}); err != nil {
			t.Error(err)
			return
		}
	}
	for _, c := range []struct {
		uid        int
		address    string
		toTheirEnd string
	}{
		{1000, "192.0.2.9:443", "proxy"},
		{1000, "192.0.2.9:80", "proxy"},
		{0, "192.0.2.9:443", "proxy"},
		{1000, "192.0.2.9:8080", "outside"},
		{proxyUID, "192.0.2.9:443", "outside"},
		{1000, "192.0.2.9:8443", "refused"},
		{0, "192.0.2.9:8443", "refused"},
		{proxyUID, "192.0.2.9:8443", "outside"},
	} {
		if got := reaches(t, c.uid, c.address); got != c.toTheirEnd {
			t.Errorf("user %d at %s gets %q, and not %q", c.uid, c.address, got, c.toTheirEnd)
		}
	}
	if err := Install(Options{Port: port, BrokerPort: brokerPort}); err == nil {
		t.Error("a proxy of root is accepted, so that root goes out")
	}
}

// newNetwork puts the thread into a new network, and returns that.
func newNetwork(t *testing.T) *os.File {
	t.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network of its own: %v", err)
	}
	network, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Close() })
	return network
}

// enter puts the thread into a network.
func enter(t *testing.T, network *os.File) {
	t.Helper()
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// ip runs the command of that name in the network of the thread.
func ip(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if text, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", line, err, text)
		}
	}
}

// serve answers at an address of the thread's network.
func serve(t *testing.T, address, answer string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}()
}

// reaches returns what answers a user at an address, "refused" if the kernel says at once that nobody does.
func reaches(t *testing.T, uid int, address string) string {
	t.Helper()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 { // of this thread
		t.Error(errno)
	}
	conn, err := (&net.Dialer{Timeout: time.Minute}).Dial("tcp", address)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
		t.Error(errno)
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	text, _ := io.ReadAll(conn)
	return string(text)
}
