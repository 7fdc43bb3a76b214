// Command kubectl-access is a plugin of kubectl for engineers who need access to
// a Pod for a while:
//
//	kubectl access templates                     what may be asked for
//	kubectl access exec web --duration 30m       access to a Pod that runs
//	kubectl access pod debug --shell             a Pod of one's own, and a shell in it
//	kubectl access list
//	kubectl access extend web-x7k2p 15m
//	kubectl access revoke web-x7k2p
//	kubectl access audit --user alice --since 24h
//
// What is asked for goes to standard output, everything else to standard error,
// so that both can be used in scripts. Exit codes:
//
//	0    done
//	1    an error
//	2    the command line is wrong
//	3    refused: by the template, by policy, or for want of a right
//	4    not ready in time; the request is kept
//	5    there is no such template, request or Pod, or no admitkit
//	130  interrupted
//
// With --shell it is the exit code of the command that ran in the Pod, and 128 and
// the number of the signal when a signal ended kubectl.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends it at once
	cmd := newCommand(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		// Commands return exitErrors, see newCommand: this one is cobra's.
		exit = &exitError{code: codeUsage, err: fmt.Errorf("%w\nSee '%s --help'", err, ran.CommandPath())}
	}
	if exit.err != nil {
		// What others wrote, such as reasons, is to do nothing to the terminal.
		fmt.Fprintf(os.Stderr, "error: %s\n", printers.EscapeTerminal(exit.err.Error()))
	}
	os.Exit(exit.code)
}
