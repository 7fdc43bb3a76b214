package main

import (
	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/extension/sandbox"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// newControllerCommand returns the command that admits and reconciles HarnessRuns.
func newControllerCommand() *cobra.Command {
	var options sandbox.Options
	cmd := command.New("sandbox", func(mgr *manager.Manager) error {
		return mgr.AddExtension(sandbox.New(options))
	})
	cmd.Use = "controller"
	cmd.Short = "Admit and run HarnessRuns"
	flags := cmd.PersistentFlags()
	flags.StringSliceVar(&options.Namespaces, "sandbox-namespaces", nil, "namespaces in which HarnessRuns run; repeatable (default: --namespace; required if that is empty)")
	return cmd
}
