// Command sandbox runs work that nobody trusts, as SandboxRuns, in Pods that reach only what
// their template names. Each subcommand is a process with just its rights.
package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	// The image has no authorities: without these the proxy would believe no server, and the broker not GitHub.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/admitkit/admitkit/manager/buildinfo"
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
		Long: `sandbox runs work that nobody trusts, as SandboxRuns, in Pods that reach only what their
template names. Each subcommand is a process with rights of its own.

Exit codes: 0 done; 1 failed; 2 a flag, an option or a manifest is wrong.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return command.Wrong(err) })
	for _, newSubcommand := range subcommands {
		process := newSubcommand()
		root.AddCommand(process)
		named(process)
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

// named has the subcommands of a process be called as what they are: cobra answers an unknown one with the help and
// exit code 0, so that a Deployment with a typing error would end as if all were well.
func named(process *cobra.Command) {
	if !process.HasSubCommands() {
		return
	}
	process.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return command.Wrong(fmt.Errorf("unknown command %q for %q\nSee '%s --help'", args[0], cmd.CommandPath(), cmd.CommandPath()))
		}
		return cmd.Help()
	}
	for _, sub := range process.Commands() {
		sub.Example = strings.ReplaceAll(sub.Example, "  sandbox "+sub.Name(), "  "+process.CommandPath()+" "+sub.Name())
		sub.Example = strings.ReplaceAll(sub.Example, "| sandbox "+sub.Name(), "| "+process.CommandPath()+" "+sub.Name())
	}
}

// exemplify gives the command manifests of a process an example of its own.
func exemplify(process *cobra.Command, example string) {
	for _, sub := range process.Commands() {
		if sub.Name() == "manifests" {
			sub.Example = example
		}
	}
}
