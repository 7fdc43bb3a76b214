//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// install copies this program into a folder, for any user to run. Nobody can read it: the
// kernel makes a process of such a program one that cannot be traced, from its first moment on.
func install(folder string) error {
	name := filepath.Join(folder, filepath.Base(protocol.Program))
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := os.CreateTemp(folder, ".session-*") // a restart must not leave half a program
	if err != nil {
		return fmt.Errorf("installing the recorder: %w", err)
	}
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o111), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), name) //nolint:gosec // our own webhook names the folder
	}
	if err != nil {
		return errors.Join(fmt.Errorf("installing the recorder: %w", err), os.Remove(to.Name())) //nolint:gosec // it is what was made here
	}
	return nil
}
