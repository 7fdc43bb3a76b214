//go:build linux

package redirect

import (
	"errors"
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

// In a network of its own, whose only way out is an interface behind which nobody is.
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
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network of its own: %v", err)
	}
	for _, line := range []string{"link set lo up", "link add d0 type veth peer name d1", "link set d1 up", "addr add 192.0.2.2/24 dev d0", "link set d0 up"} {
		if text, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", line, err, text)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:15001")
	if err != nil {
		t.Error(err)
		return
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "proxy")
			_ = conn.Close()
		}
	}()
	if reaches(t, 1000, "192.0.2.9:443") == "proxy" {
		t.Error("without rules a connection goes to the proxy")
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
		{1000, "192.0.2.9:8080", ""},
		{proxyUID, "192.0.2.9:443", ""},
		{1000, "192.0.2.9:8443", "refused"},
		{0, "192.0.2.9:8443", "refused"},
		{proxyUID, "192.0.2.9:8443", ""},
	} {
		if got := reaches(t, c.uid, c.address); got != c.toTheirEnd {
			t.Errorf("user %d at %s gets %q, and not %q", c.uid, c.address, got, c.toTheirEnd)
		}
	}
	for sentence, options := range map[string]Options{
		"a proxy of root is accepted, so that root goes out":      {Port: port, BrokerPort: brokerPort},
		"no port of the broker is accepted, so that all reach it": {Port: port, ProxyUID: proxyUID},
	} {
		if err := Install(options); err == nil {
			t.Error(sentence)
		}
	}
}

// reaches returns what answers a user at an address, "refused" if the kernel says at once that nobody does.
func reaches(t *testing.T, uid int, address string) string {
	t.Helper()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 { // of this thread
		t.Error(errno)
	}
	conn, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).Dial("tcp", address)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
		t.Error(errno)
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	text, _ := io.ReadAll(conn)
	return string(text)
}
