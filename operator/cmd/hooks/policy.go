package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/hook/rego"
	"github.com/admitkit/admitkit/operator/internal/hook/review"
)

// now is the clock of policies.
var now = time.Now

// newTest returns the command that runs the tests of policies.
func newTest() *cobra.Command {
	var options rego.TestOptions
	cmd := &cobra.Command{
		Use:   "test [DIR]",
		Short: "Run the tests of policies in Rego",
		Long: `Run the rules that begin with test_ in the .rego files of a folder, by default this one,
and of those below it. The policies have the builtins of a hook. No tests is a failure.`,
		Args: func(cmd *cobra.Command, args []string) error { return command.Wrong(cobra.MaximumNArgs(1)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			if info, err := os.Stat(dir); err != nil {
				return command.Wrong(err)
			} else if !info.IsDir() {
				return command.Wrong(fmt.Errorf("%s is not a folder: name the one that has the policy and its tests", dir))
			}
			err := rego.Test(cmd.Context(), cmd.OutOrStdout(), os.DirFS(dir), options)
			if !errors.Is(err, rego.ErrTestsFailed) {
				err = command.Wrong(err)
			}
			return err
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	cmd.Flags().StringVar(&options.Version, "rego-version", rego.V1, "version of the language that the files are in: v0 or v1")
	cmd.Flags().StringVar(&options.Run, "run", "", "regular expression: only tests whose names match it run")
	cmd.Flags().DurationVar(&options.Timeout, "timeout", 5*time.Second, "how long one test can take")
	return cmd
}

// newReview returns the command that shows what hooks would do.
func newReview() *cobra.Command {
	var options review.Options
	var files []string
	var at string
	cmd := &cobra.Command{
		Use:   "review -f FILE...",
		Short: "Show what the policies would make of parents, without a cluster",
		Long: `Read CompositeControllers whose hooks are policies, the ConfigMaps of these, parents and the
children that exist already, and print as a diff what would become of the parents' status and
children. Nothing is sent anywhere.`,
		Args: func(cmd *cobra.Command, args []string) error { return command.Wrong(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if at != "" {
				var err error
				if options.Now, err = time.Parse(time.RFC3339, at); err != nil {
					return command.Wrong(fmt.Errorf("--now: %q is no time as 2030-01-01T22:00:00Z", at))
				}
			}
			manifests, err := read(cmd.InOrStdin(), files)
			if err != nil {
				return command.Wrong(err)
			}
			objects, err := review.Read(strings.NewReader(manifests))
			if err == nil {
				err = review.Run(cmd.Context(), cmd.OutOrStdout(), objects, options)
			}
			if errors.Is(err, review.ErrManifests) || errors.Is(err, review.ErrNothing) {
				err = command.Wrong(err)
			}
			return err
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file with manifests, - for the standard input; repeatable")
	cmd.Flags().StringVar(&at, "now", "", "clock of the policies, such as 2030-01-01T22:00:00Z (default: now)")
	cmd.Flags().BoolVar(&options.Finalize, "finalize", false, "ask the hook finalize, as if the parent were being deleted")
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is above
	}
	return cmd
}

// read returns the manifests of all files as one text. [review.Read] bounds it, and here a
// file is read no further than that.
func read(in io.Reader, files []string) (string, error) {
	if len(files) == 0 {
		return "", errors.New("-f: name at least one file with manifests")
	}
	var all strings.Builder
	for _, name := range files {
		from := in
		if name != "-" {
			file, err := os.Open(name) //nolint:gosec // the user names it
			if err != nil {
				return "", err
			}
			defer file.Close() //nolint:errcheck // it was only read
			from = file
		}
		if _, err := io.Copy(&all, io.LimitReader(from, review.MaxBytes+1)); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		all.WriteString("\n---\n")
		if all.Len() > 2*review.MaxBytes {
			break // Read says that it is too much
		}
	}
	return all.String(), nil
}
