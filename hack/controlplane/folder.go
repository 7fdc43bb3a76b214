package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock keeps a second run out of the folder until the first is done. The
// kernel releases it when the process ends, however it ends.
func lock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	fd := int(file.Fd())
	if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Println("controlplane: another build is under way; waiting for it")
		if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
			return nil, fmt.Errorf("locking %s: %w", file.Name(), err)
		}
	}
	return func() { _ = file.Close() }, nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// unwritable reports whether an error is that of a disk that is full or read-only.
func unwritable(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// replaceLink points name at target in one step. A link that is right stays, since the disk may be read-only.
func replaceLink(target, name string) error {
	if is, err := os.Readlink(name); err == nil && is == target {
		return nil
	}
	temp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, name)
}

// removeLeftovers removes what a build that was killed left behind.
func removeLeftovers(dir string) {
	leftovers, err := filepath.Glob(filepath.Join(dir, leftover+"*"))
	if err != nil {
		return
	}
	for _, leftover := range leftovers {
		_ = os.RemoveAll(leftover)
	}
}
