//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// others returns the terminals that are not this process's own.
func others() []string {
	own, _ := os.Readlink("/proc/self/fd/0") // without a terminal it is none of them
	all, _ := filepath.Glob("/dev/pts/[0-9]*")
	var found []string
	for _, path := range all {
		if path != own {
			found = append(found, path)
		}
	}
	return found
}

// terminals opens the terminals of others, and types into them.
func terminals() {
	for _, path := range others() {
		report("to open "+path, func() (string, error) {
			file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
			if err != nil {
				return "", err
			}
			defer func() { _ = file.Close() }()
			_, err = file.WriteString("GAINED by " + path + "\r\n")
			return "it", err
		})
		report("to have anybody open "+path, func() (string, error) {
			if err := os.Chmod(path, 0o666); err != nil {
				return "", err
			}
			return "it", opened(path, os.O_RDWR)
		})
	}
	report("to take /dev/console", func() (string, error) { return "it", opened("/dev/console", os.O_RDWR) })
}

// holdTime is how long grab has a terminal open, which its client waits for.
const holdTime = 10 * time.Second

// grab opens each terminal that it can, and prints on it what nobody records.
func grab(d time.Duration) {
	grabbed := map[string]time.Time{}
	for _, path := range others() {
		grabbed[path] = time.Now().Add(d) // it is there already
	}
	fmt.Println("grabbing")
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		names, err := os.ReadDir("/dev/pts")
		if err != nil {
			continue
		}
		for _, name := range names {
			path := "/dev/pts/" + name.Name()
			if time.Now().Before(grabbed[path]) || strings.HasSuffix(path, "ptmx") {
				continue
			}
			file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
			if err != nil {
				continue
			}
			grabbed[path] = time.Now().Add(holdTime + time.Second/2)
			go func() {
				defer func() { _ = file.Close() }()
				for end := time.Now().Add(holdTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					_, _ = file.WriteString("INTRUDER on " + path + "\r\n")
				}
			}()
		}
	}
}
