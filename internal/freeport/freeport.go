// Package freeport finds ports for tests and demonstrations to listen on.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Find returns a port of 127.0.0.1 that is free now and that the kernel gives to
// nobody who asks for any port: Linux does so from 32768, macOS from 49152. A port
// from there (":0") could be taken by an outgoing connection of another process
// before who asked listens, or while it restarts.
func Find() (int32, error) {
	const first, count, tries = 20000, 10000, 100
	var err error
	for range tries {
		port := first + rand.Int32N(count) //nolint:gosec // not a secret
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free port in %d tries: %w", tries, err)
}

// For is Find for a test, which ends where there is none.
func For(t testing.TB) int32 {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
