// Package command is the command line that every extension gets, so that each
// has one binary for one process or two, a review without a cluster, the
// manifests of its installation, and a clean removal:
//
//	func main() {
//		command.Main(command.New("my-ext", func(mgr *manager.Manager) error {
//			return mgr.AddExtension(myExtension)
//		}))
//	}
//
//	my-ext start      register and serve, in one process
//	my-ext register   register and end, or with --stay go on (the registrar)
//	my-ext serve      serve what the registrar has registered
//	my-ext unregister remove the webhook configurations, what the extensions made, and the Secrets
//	my-ext review     run the extensions on manifests, without a cluster
//	my-ext manifests  print what an installation needs
//
// # Flags and environment
//
// Each flag, an author's own included, can be given by an environment variable:
// --webhook-namespace by ADMITKIT_WEBHOOK_NAMESPACE. The flag wins. The --zap-
// flags are controller-runtime's.
//
// # Exit codes
//
//	0  done; after SIGINT or SIGTERM too
//	1  it failed, or review has a denial
//	2  what was asked for is wrong: a flag, an option, an extension, a manifest
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager"
)

// Build adds the extensions to a manager. It is called by every subcommand
// that needs them, with the same flags, so that names and paths agree.
type Build func(mgr *manager.Manager) error

// New returns the command. Flags of the author's own go onto its
// PersistentFlags; they are parsed when build is called. Its Version is that of
// the program's module; set it to have another one.
func New(name string, build Build) *cobra.Command {
	f := &flags{}
	root := &cobra.Command{
		Use:   name,
		Short: name + " answers Kubernetes admissions",
		Long: name + ` answers Kubernetes admissions.

Each flag can be given by an environment variable too: --webhook-namespace by
ADMITKIT_WEBHOOK_NAMESPACE. The flag wins.

Exit codes: 0 done; 1 failed, or denied by review; 2 a flag, option or manifest is wrong.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrong(err) })
	f.bind(root)
	add := func(use, short, long string, registers bool, run func(*manager.Manager, context.Context) error) *cobra.Command {
		cmd := &cobra.Command{
			Use: use, Short: short, Long: long, Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				options, err := f.complete(cmd)
				if err != nil {
					return wrong(err)
				}
				options.RegisterWebHook = &registers
				mgr, err := newManager(options, build)
				if err != nil {
					return err
				}
				return run(mgr, cmd.Context())
			},
		}
		root.AddCommand(cmd)
		return cmd
	}
	add("start", "Register the webhooks and serve them",
		"Register the webhooks and serve them, in one process. It needs the rights of both\nregister and serve.",
		true, (*manager.Manager).Start)
	var stay bool
	add("register", "Register the webhooks and end, or stay",
		"Create the CA Secret and the webhook configurations, and end. Run it with rights that\nthe serving process does not have, and again after an upgrade. With --stay it goes on:\nit rotates the CA, writes the leaf's Secret and repairs the configurations.",
		true, func(mgr *manager.Manager, ctx context.Context) error {
			if stay {
				return mgr.KeepRegistered(ctx)
			}
			return mgr.RegisterExtensions(ctx)
		}).Flags().BoolVar(&stay, "stay", false, "do not end: rotate certificates and repair the webhook configurations")
	add("serve", "Serve webhooks that are registered by register",
		"Serve the webhooks. It reads the CA Secret and needs no right on webhook\nconfigurations; it waits until register has created the Secret.",
		false, (*manager.Manager).Start)
	var scaleDown []string
	var scaleDownTimeout time.Duration
	unregister := add("unregister", "Remove the webhook configurations, what the extensions made, and the CA Secret",
		"Remove what the extensions made that must not outlive them, the webhook configurations,\nthe Secrets and the Lease, and log each. Run it with the flags of the installation, before\nthe rest is deleted: a configuration without a server blocks what its failure policy Fail\ncovers. A manager that runs would repair what is removed: name its Deployments.",
		true, func(mgr *manager.Manager, ctx context.Context) error {
			if len(scaleDown) > 0 {
				waiting, cancel := context.WithTimeout(ctx, scaleDownTimeout)
				defer cancel()
				if err := mgr.ScaleDown(waiting, scaleDown...); err != nil {
					// The managers may be gone all the same, from a node that is dead for
					// example: nobody else would end what has to end.
					return errors.Join(err, mgr.RunRemovers(ctx))
				}
			}
			return mgr.UnregisterExtensions(ctx)
		}).Flags()
	unregister.StringSliceVar(&scaleDown, "scale-down", nil, "before, scale these Deployments in --webhook-namespace to zero and wait until their Pods are gone")
	unregister.DurationVar(&scaleDownTimeout, "scale-down-timeout", 2*time.Minute, "how long to wait for these Pods; then what the extensions made is removed, and no more")
	root.AddCommand(newReview(name, f, build), newManifests(name, f, build))
	return root
}

// newManager makes the manager with its extensions.
func newManager(options manager.Options, build Build) (*manager.Manager, error) {
	mgr, err := manager.New(options)
	if err != nil {
		return nil, wrong(err)
	}
	if err := build(mgr); err != nil {
		return nil, wrong(err)
	}
	return mgr, nil
}

// Main runs the command until it ends or SIGINT or SIGTERM stops it, and exits
// with one of the codes of the package comment, and the error on standard error.
// A second signal ends the process without a drain.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
		os.Exit(ExitCode(err))
	}
}

// ExitCode returns the exit code for an error of the command; 0 for none. It is
// for those who do not use [Main].
func ExitCode(err error) int {
	var bad *wrongError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &bad), strings.HasPrefix(err.Error(), "unknown command "): // cobra has no type for it
		return 2
	}
	return 1
}

// wrongError is the error of someone who asked for the wrong thing.
type wrongError struct{ error }

func (e *wrongError) Unwrap() error { return e.error }

func wrong(err error) error { return &wrongError{err} }

func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return wrong(err)
	}
	return nil
}

// version is that of the program, and of the library in it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	const library = "github.com/admitkit/admitkit"
	text := info.Main.Version
	for _, module := range info.Deps {
		if module.Path == library {
			text += ", admitkit " + module.Version
		}
	}
	return text + ", " + info.GoVersion
}
