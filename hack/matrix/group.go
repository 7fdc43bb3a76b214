package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// grace is how long a command has to end when it is told to.
const grace = 10 * time.Second

// command is a command with a process group of its own, which is told to end when
// ctx ends: go passes no signal on to the programs that it runs.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = grace
	return c
}

// runGroup runs a command and leaves none of its group.
func runGroup(c *exec.Cmd) error {
	if err := c.Start(); err != nil {
		return err
	}
	err := c.Wait()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	return err
}

// output returns what a short command prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	c := command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := runGroup(c); err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err), errors.New(strings.TrimSpace(stderr.String())))
	}
	return stdout.String(), nil
}

// commit names what was tested.
func commit(ctx context.Context) string {
	text, err := output(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(text)
}
