package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/admitkit/admitkit/manager/buildinfo"
)

// newCommand returns the whole command line. kubectl shows it as `kubectl
// access`, and so does its help.
func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	c := &cli{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true), global: pflag.NewFlagSet("kubectl", pflag.ContinueOnError)}
	root := &cobra.Command{
		Use:   "kubectl-access",
		Short: "Request access to a Pod, or a role, for a limited time",
		Long: `Request access to a Pod, or a role, for a limited time.

Templates say who may ask, for what and for how long. "kubectl access templates"
lists them; "exec" asks for access to a Pod that runs, "pod" for a Pod of your own,
"role" for a role.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl access"},
		Version:       buildinfo.Get().Short(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exitf(codeUsage, "%w\nSee '%s --help'", err, cmd.CommandPath())
	})
	c.flags.AddFlags(c.global)
	root.PersistentFlags().AddFlagSet(c.global)
	c.completeGlobal(root)
	root.AddCommand(
		c.requestCommand(execRequests), c.requestCommand(podRequests), c.requestCommand(roleRequests),
		c.listCommand(), c.templatesCommand(), c.describeCommand(), c.extendCommand(), c.revokeCommand(),
		c.approveCommand(), c.denyCommand(),
		runCommand(c), runsCommand(c),
		auditCommand(c), sessionsCommand(c), migrateCommand(c), c.versionCommand(),
	)
	// If no command has run, cobra has rejected the command line.
	coded(root)
	return root
}

// coded has the errors of all commands below one have an exit code.
func coded(of *cobra.Command) {
	for _, cmd := range of.Commands() {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error { return withCode(run(cmd, args)) }
		}
		coded(cmd)
	}
}

func (c *cli) versionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of the plugin",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			if err := buildinfo.Get().Write(c.Out, "kubectl access", format); err != nil {
				return exitf(codeUsage, "%w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "format: json, or text if empty")
	return cmd
}
