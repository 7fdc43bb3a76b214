//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cgroups returns the folders of the Pods' cgroups: one of version 2, or one for
// each controller of version 1.
func (c *cluster) cgroups() []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		folders, _ := filepath.Glob(pattern + c.name()) // the pattern is good
		found = append(found, folders...)
	}
	return found
}

// addCgroups makes the folder for the Pods' cgroups, in every hierarchy
// of version 1 or in the one of version 2.
func (c *cluster) addCgroups(ctx context.Context) error {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return errors.Join(passOn(ctx, "/sys/fs/cgroup"), os.MkdirAll(filepath.Join("/sys/fs/cgroup", c.name()), 0o755))
	}
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		return err
	}
	for _, procs := range hierarchies {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(procs), c.name()), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// passOn has a cgroup of version 2 pass its controllers on to those in it, as
// kubelet needs. One that does may hold no processes itself, but for the machine's
// own root (https://docs.kernel.org/admin-guide/cgroup-v2.html#no-internal-process-constraint),
// and a container's root may hold some: they go to "init", as in Docker's own
// containers for Docker.
func passOn(ctx context.Context, cgroup string) error {
	available, err := os.ReadFile(filepath.Join(cgroup, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var controllers []byte
	for controller := range strings.FieldsSeq(string(available)) {
		controllers = append(controllers, " +"+controller...)
	}
	return poll(ctx, 10*time.Second, cgroup+" passes on"+string(controllers), func(context.Context) error {
		err := os.WriteFile(filepath.Join(cgroup, "cgroup.subtree_control"), controllers, 0o600)
		if errors.Is(err, syscall.EBUSY) {
			err = errors.Join(err, moveProcesses(cgroup, filepath.Join(cgroup, "init")))
		}
		return err
	})
}

func moveProcesses(from, to string) error {
	processes, err := os.ReadFile(filepath.Join(from, "cgroup.procs"))
	if err != nil {
		return err
	}
	errs := []error{os.MkdirAll(to, 0o755)}
	for pid := range strings.FieldsSeq(string(processes)) {
		if pid == "0" { // one that this namespace does not see; to write it would mean ourselves
			continue
		}
		if err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(pid), 0o600); !errors.Is(err, syscall.ESRCH) { // it has ended
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeCgroups removes those of the Pods, in every hierarchy. A cgroup is
// removed as a folder is, when those in it are.
func (c *cluster) removeCgroups(ctx context.Context) error {
	roots := c.cgroups()
	return poll(ctx, 10*time.Second, "the cgroups are empty", func(context.Context) error {
		var errs []error
		for _, root := range roots {
			var folders []string
			err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					folders = append(folders, path)
				}
				return err
			})
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			errs = append(errs, err)
			for _, folder := range slices.Backward(folders) {
				errs = append(errs, syscall.Rmdir(folder))
			}
		}
		return errors.Join(errs...)
	})
}
