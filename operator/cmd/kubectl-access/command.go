package main

import (
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/audit"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/oz"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/runs"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/sessions"
)

// commands are those about requests: request.go makes one, with wait.go and shell.go;
// change.go and decide.go change it; list.go lists, with the columns in print.go. kind.go has
// the kinds of requests.
type commands struct{ *cli.Base }

// newCommand returns the whole command line. kubectl shows it as `kubectl
// access`, and so does its help.
func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	c := &commands{cli.New(streams)}
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
		return cli.Exitf(cli.CodeUsage, "%w\nSee '%s --help'", err, cmd.CommandPath())
	})
	c.AddFlags(root)
	root.AddCommand(
		c.requestCommand(execRequests), c.requestCommand(podRequests), c.requestCommand(roleRequests),
		c.listCommand(), c.templatesCommand(), c.describeCommand(), c.extendCommand(), c.revokeCommand(),
		c.approveCommand(), c.denyCommand(),
		runs.RunCommand(c.Base), runs.Command(c.Base),
		audit.Command(c.Base), sessions.Command(c.Base), oz.Command(c.Base), c.versionCommand(),
	)
	// If no command has run, cobra has rejected the command line.
	coded(root)
	return root
}

// coded has the errors of all commands below one have an exit code.
func coded(of *cobra.Command) {
	for _, cmd := range of.Commands() {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error { return cli.WithCode(run(cmd, args)) }
		}
		coded(cmd)
	}
}

func (c *commands) versionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of the plugin",
		Args:  cli.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			if err := buildinfo.Get().Write(c.Out, "kubectl access", format); err != nil {
				return cli.Exitf(cli.CodeUsage, "%w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "format: json, or text if empty")
	return cmd
}
