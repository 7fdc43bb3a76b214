package command

import (
	"io"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

var (
	PathsOf        = pathsOf
	FlagsOfOptions = flagsOfOptions
)

// Logger returns the logger that the flags make, which writes into.
func Logger(into io.Writer, args ...string) (*zap.Logger, error) {
	cmd, f := &cobra.Command{}, &flags{}
	f.bind(cmd, "x")
	f.log.DestWriter = into
	err := cmd.ParseFlags(args)
	return f.newLogger(), err
}
