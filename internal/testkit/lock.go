package testkit

import (
	"fmt"
	"os"
	"syscall"
)

// Lock waits until no other process has the lock of a file, and takes it. The tests of two
// packages that need a whole cluster take turns by its kubeconfig.
func Lock(path string) (unlock func(), err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}
