package cli

import (
	"context"
	"errors"
	"os/exec"
	"syscall"

	"github.com/spf13/pflag"
)

// Kubectl runs kubectl, which connects as this program does. An interrupt goes to the command in the Pod, not to this
// program.
func (c *Base) Kubectl(ctx context.Context, args []string) error {
	command := exec.CommandContext(context.WithoutCancel(ctx), "kubectl", append(c.connection(), args...)...) //nolint:gosec // the callers make them
	command.Stdin, command.Stdout, command.Stderr = c.In, c.Out, c.ErrOut
	err := command.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return Exitf(128+int(status.Signal()), "kubectl was ended by a signal: %s", status.Signal())
	}
	return &ExitError{Code: exit.ExitCode()} // kubectl has printed the reason
}

// connection returns kubectl's own flags that the command line gave this command, so
// that kubectl connects in the same way and as the same user.
func (c *Base) connection() []string {
	var args []string
	c.global.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed || flag.Name == "namespace" { // that of the request is always there
			return
		}
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+flag.Name+"="+value)
		}
	})
	return args
}
