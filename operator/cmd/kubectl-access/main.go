// Command kubectl-access is a kubectl plugin for engineers who need access to a
// Pod, or a role, for a limited time:
//
//	kubectl access templates --mine              what you can request
//	kubectl access exec web --duration 30m       access to a running Pod
//	kubectl access pod debug --shell             a Pod of your own, and a shell in it
//	kubectl access role deployer --duration 10m  a role for ten minutes
//	kubectl access list
//	kubectl access extend web-x7k2p 15m          or -15m, to end it sooner
//	kubectl access revoke web-x7k2p
//	kubectl access list --for-me                 what waits for your approval
//	kubectl access approve web-x7k2p
//	kubectl access deny web-x7k2p --reason "use the replica"
//	kubectl access run agent --prompt "Mend the build." --watch
//	kubectl access runs list
//	kubectl access runs cancel agent-x7k2p
//	kubectl access audit --user alice --since 24h
//	kubectl access sessions list                 recorded sessions; replay, watch, search, end
//	kubectl access migrate -f oz/                manifests of Oz become ours
//
// Results go to standard output and everything else to standard error, for use in
// scripts. Exit codes:
//
//	0    done
//	1    an error
//	2    invalid command line, or several templates fit the workload
//	3    refused by the template or by policy, or a right is missing
//	4    not ready in time; the request is kept
//	5    the template, request or Pod does not exist, no template fits the workload,
//	     or admitkit is not installed
//	130  interrupted
//
// With --shell the exit code is that of the command in the Pod, or 128 plus the
// signal number if a signal ended kubectl.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, os.Args[1:]))
}

// run runs a command line, and returns its exit code.
func run(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	cmd := newCommand(streams)
	cmd.SetArgs(negativeLast(cmd, args))
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var exit *cli.ExitError
	if !errors.As(err, &exit) {
		// Commands return ExitErrors, see newCommand: this one is cobra's.
		exit = &cli.ExitError{Code: cli.CodeUsage, Err: fmt.Errorf("%w\nSee '%s --help'", err, ran.CommandPath())}
	}
	if exit.Err != nil {
		// Text of other users, such as reasons, must not control the terminal.
		_, _ = fmt.Fprintf(streams.ErrOut, "error: %s\n", cli.Escape(exit.Err.Error()))
	}
	return exit.Code
}
