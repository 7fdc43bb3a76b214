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
	// The kernel gives none of these to who asks for any port: Linux does so from
	// 32768, macOS from 49152. A port from there (":0") could be taken by an outgoing
	// connection of another process before who asked listens, or while it restarts.
	first, count = 20000, 10000
	// A port is taken from others who look for one, in this process or another, for
	// as long as this process lives: by a listener on the port so far below it.
	claim = -10000
)

var (
	mu     sync.Mutex
	claims []net.Listener // which are closed when nobody has them
)

// Find returns a port of 127.0.0.1 that is free, and that nobody else gets here.
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

// For is Find for a test, which ends where there is none.
func For(t testing.TB) int32 {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
