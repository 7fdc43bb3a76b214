// Command sandbox runs work that nobody trusts, as HarnessRuns, in Pods that reach only what
// their template names. Each subcommand is a process with just its rights.
package main

import (
	"github.com/spf13/cobra"
	// The image has no authorities: without these the proxy would believe no server, and the broker not GitHub.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/admitkit/admitkit/internal/buildinfo"
	"github.com/admitkit/admitkit/manager/command"
)

// subcommands are the processes of the program, each in a file of its name.
var subcommands = []func() *cobra.Command{
	newControllerCommand,
	newBrokerCommand,
	newProxyCommand,
	newSeedCommand,
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
	oneVersion(root)
	return root
}

// oneVersion takes the command version from the processes that have one: it is that of the
// program.
func oneVersion(root *cobra.Command) {
	root.Version = buildinfo.Get().Short()
	for _, process := range root.Commands() {
		for _, version := range process.Commands() {
			if version.Name() == "version" {
				process.RemoveCommand(version)
				if found, _, err := root.Find([]string{"version"}); err != nil || found == root {
					root.AddCommand(version)
				}
			}
		}
	}
}
