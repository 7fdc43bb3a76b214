package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/internal/sandbox/seed"
)

// newSeedCommand returns the command that fills a Workspace.
func newSeedCommand() *cobra.Command {
	options := seed.Options{}
	cmd := &cobra.Command{
		Use:   "seed",
		Short: "Fetch the git repositories of a Workspace",
		Long: `Fetch the git repositories that $` + seed.Env + ` lists into the folder of a Workspace. It runs in
a Pod of its own, has no right on the cluster, and ends.`,
		Args: func(cmd *cobra.Command, args []string) error { return command.Wrong(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			options.Repos, options.Log = os.Getenv(seed.Env), cmd.OutOrStdout()
			return seed.Run(ctx, options)
		},
	}
	cmd.Flags().StringVar(&options.Dir, "dir", "", "folder of the Workspace (default /workspace)")
	cmd.Flags().StringVar(&options.CAFile, "ca-file", "", "authorities of servers, in PEM, besides those of the image (default /admitkit/ca/ca.crt, if there is one)")
	return cmd
}
