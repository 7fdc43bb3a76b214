// Package freeport finds ports for tests and demonstrations to listen on.
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
	// These ports are below those that the kernel hands out for ":0" and for outgoing
	// connections (Linux from 32768, macOS from 49152). An outgoing connection of
	// another process could otherwise take the port before the caller listens, or
	// while it restarts.
	first, count = 20000, 10000
	// A listener on the port this far below claims a port, so that neither this
	// process nor another one finds it again while this process lives.
	claim = -10000
)

var (
	mu     sync.Mutex
	claims []net.Listener // kept, because a collected listener is closed
)

// Find returns a free port of 127.0.0.1 that no other call returns.
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
	return 0, fmt.Errorf("found no free port in %d tries: %w", tries, errs)
}

func listen(port int32) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

// For is Find for a test. It ends the test if there is no free port.
func For(t testing.TB) int32 {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
