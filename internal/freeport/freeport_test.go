package freeport_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/freeport"
)

const ports = 300

// TestMain prints ports and waits, in a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("FREEPORT_PRINT") == "" {
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
		other := exec.Command(os.Args[0])
		other.Env = append(os.Environ(), "FREEPORT_PRINT=1")
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
				t.Errorf("port %s is given twice", port)
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
		t.Errorf("the kernel may give port %s to others", port)
	}
}
