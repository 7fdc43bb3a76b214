// Package freeport finds ports that tests and demonstrations can listen on.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

const (
	// Find takes ports from below the kernel's ephemeral range, which begins at 32768
	// on Linux and at 49152 on macOS. An outgoing connection of another process could
	// take an ephemeral port (":0") before the caller listens on it, or while the
	// caller restarts.
	first, count = 20000, 10000
	// As long as this process lives, it claims its ports, so that Find returns them to
	// no one else, here or in another process. A claim is a listener on the port at
	// this offset.
	claim = -10000
)

var (
	mu     sync.Mutex
	claims []net.Listener // kept, because the garbage collector would close them
)

// Find returns a free port of 127.0.0.1. No other call returns the same port, in this
// process or in another, as long as this process lives.
func Find() (int32, error) {
	const tries = 100
	var errs error
	for range tries {
		port := first + rand.Int32N(count) //nolint:gosec // not a secret
		claimed, err := listen(port + claim)
		if err == nil {
			mu.Lock()
			claims = append(claims, claimed)
			mu.Unlock()
			var free net.Listener
			if free, err = listen(port); err == nil {
				return port, free.Close()
			}
		}
		errs = errors.Join(errs, err)
	}
	return 0, fmt.Errorf("no free port in %d tries: %w", tries, errs)
}

func listen(port int32) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

// For is Find for a test. It ends the test if it finds no port.
func For(t testing.TB) int32 {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
