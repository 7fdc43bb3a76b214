// Command sandbox runs work that nobody trusts, as HarnessRuns, in Pods that reach only what
// their template names. Each subcommand is a process with just its rights.
package main

import (
	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager/command"
)

// subcommands are the processes of the program, each in a file of its name.
var subcommands = []func() *cobra.Command{
	newControllerCommand,
	newBrokerCommand,
	newProxyCommand,
}

func main() {
	command.Main(newCommand())
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sandbox",
		Short: "sandbox runs work that nobody trusts",
		Long: `sandbox runs work that nobody trusts, as HarnessRuns, in Pods that reach only what their
template names. Each subcommand is a process with rights of its own.

Exit codes: 0 done; 1 failed; 2 a flag, an option or a manifest is wrong.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return command.Wrong(err) })
	for _, newSubcommand := range subcommands {
		root.AddCommand(newSubcommand())
	}
	return root
}
