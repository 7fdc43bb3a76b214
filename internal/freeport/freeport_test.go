package freeport_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
)

const ports = 300

// printPorts makes the test binary a process that prints ports and waits.
const printPorts = "FREEPORT_PRINT"

func TestMain(m *testing.M) {
	if os.Getenv(printPorts) == "" {
		os.Exit(m.Run())
	}
	for range ports {
		port, err := freeport.Find()
		if err != nil {
			panic(err)
		}
		fmt.Println(port)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestNoTwoProcessesGetTheSamePort(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		other := testkit.Again(t, printPorts, "1")
		in, err := other.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := other.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in.Close()
			_ = other.Wait()
		}()
		for range ports {
			var port string
			if _, err := fmt.Fscanln(out, &port); err != nil {
				t.Fatal(err)
			}
			if seen[port] {
				t.Errorf("two processes got port %s", port)
			}
			seen[port] = true
		}
	}
}

func TestAPortIsFreeToListenOn(t *testing.T) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", freeport.For(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if port := strings.Split(listener.Addr().String(), ":")[1]; port < "20000" || port > "29999" {
		t.Errorf("port %s may be in the kernel's ephemeral range", port)
	}
}
