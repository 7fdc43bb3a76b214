package command

import (
	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager/buildinfo"
)

// newVersion returns the subcommand that says what the binary was built from.
func newVersion() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program, and that of admitkit in it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := buildinfo.Get()
			// The author's own version wins over that of the module.
			if own := cmd.Root().Version; own != info.Short() {
				info.Version = own
			}
			if err := info.Write(cmd.OutOrStdout(), cmd.Root().Name(), format); err != nil {
				return wrong(err)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "format: json, or text if empty")
	return cmd
}
