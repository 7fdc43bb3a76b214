// Package command is the command line of a program of extensions. It gives every
// program one binary for one process or two, a review without a cluster, the
// manifests of its installation, and a clean removal:
//
//	func main() {
//		command.Main(command.New("my-ext", func(mgr *manager.Manager) error {
//			return mgr.AddExtension(myExtension)
//		}))
//	}
//
//	my-ext start      register and serve, in one process
//	my-ext register   register and end, or keep running with --stay (the registrar)
//	my-ext serve      serve what the registrar has registered
//	my-ext reconcile  run the reconcilers and watchers, apart from what serves
//	my-ext check      ask the API server whether the webhooks are registered, and answer
//	my-ext unregister remove the webhook configurations, what the extensions made, and the Secrets
//	my-ext review     run the extensions on manifests, without a cluster
//	my-ext scan       run the extensions on what the cluster stores, and change nothing
//	my-ext explain    say which extensions see an object of the cluster, and what they would do
//	my-ext replay     run the extensions on recorded admissions, and print what differs
//	my-ext manifests  print the manifests of an installation
//	my-ext version    print the version of the program, and that of admitkit in it
//
// # Flags and environment
//
// Each flag, your own included, can also be set by an environment variable:
// --webhook-namespace by ADMITKIT_WEBHOOK_NAMESPACE. The flag wins. The --zap-
// flags are controller-runtime's.
//
// # Memory
//
// The subcommands that run a manager set the Go runtime's memory limit to four fifths
// of the container's. GOMEMLIMIT in the environment wins.
//
// # Exit codes
//
//	0  done; also after SIGINT or SIGTERM
//	1  it failed, or review denied something, found a change in vain or a call without the
//	   right to it, or with --strict an object that reaches no extension; or scan found
//	   something that is denied, stuck or failed, or replay a difference
//	2  the request is wrong: a flag, an option, an extension, a scope, a manifest
package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/internal/replay"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/webhook"
)

// Build adds the extensions to a manager. Every subcommand that needs them calls
// it, with the same flags, so that names and paths agree.
type Build func(mgr *manager.Manager) error

// Option changes what New returns.
type Option func(*flags)

// WithOptions has change called with the options that the flags make, for those that no
// flag sets, such as Scheme and Certificates.OnChange.
func WithOptions(change func(*manager.Options)) Option {
	return func(f *flags) { f.change = append(f.change, change) }
}

// WithInstallOptions has change called with the options that the flags of manifests make,
// for those that no flag sets, and for objects that belong to every installation, such as
// a CustomResourceDefinition. review knows the kinds that these define.
func WithInstallOptions(change func(*manager.InstallOptions)) Option {
	return func(f *flags) { f.changeInstall = append(f.changeInstall, change) }
}

// New returns the command. Add your own flags to its PersistentFlags; they are
// parsed when build is called. Its Version is the version of the program's module;
// set it to override that.
func New(name string, build Build, options ...Option) *cobra.Command {
	f := &flags{}
	for _, option := range options {
		option(f)
	}
	root := &cobra.Command{
		Use:   name,
		Short: name + " answers Kubernetes admissions",
		Long: name + ` answers Kubernetes admissions.

Each flag can also be set by an environment variable: --webhook-namespace by
ADMITKIT_WEBHOOK_NAMESPACE. The flag wins.

Exit codes: 0 done; 1 failed, denied by review or scan, or different in replay; 2 a flag, option, scope or manifest is wrong.`,
		Version:       buildinfo.Get().Short(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrong(err) })
	f.bind(root, name)
	s := subcommands{f, build}
	root.AddCommand(s.start(), s.register(), s.serve(), s.reconcile(), s.check(), s.unregister(), newReview(name, f, build), newScan(name, f, build), newExplain(name, f, build),
		newReplay(name, f, build), newManifests(name, f, build), newVersion())
	for _, sub := range root.Commands() {
		run := sub.RunE
		sub.RunE = func(cmd *cobra.Command, args []string) error { return f.inFlags(cmd.Flags(), run(cmd, args)) }
	}
	return root
}

// subcommands are those that run a manager on a cluster.
type subcommands struct {
	flags *flags
	build Build
}

func (s subcommands) start() *cobra.Command {
	return s.runs(true, func(mgr *manager.Manager, ctx context.Context) error {
		if user := mgr.GetReconcilerUser(); user != "" {
			return wrong(fmt.Errorf("--reconciler-user: %s: start reconciles in its own process; use register, serve and reconcile", user))
		}
		return mgr.Start(ctx)
	}, &cobra.Command{
		Use:   "start",
		Short: "Register the webhooks and serve them",
		Long:  "Register the webhooks and serve them, in one process, and run reconcilers\nand watchers. It needs the rights of register, serve and reconcile.",
	})
}

func (s subcommands) register() *cobra.Command {
	var stay bool
	cmd := s.runs(true, func(mgr *manager.Manager, ctx context.Context) error {
		if stay {
			return mgr.KeepRegistered(ctx)
		}
		return mgr.RegisterExtensions(ctx)
	}, &cobra.Command{
		Use:   "register",
		Short: "Register the webhooks and end, or stay",
		Long: `Create the CA Secret and the webhook configurations, and end. Run it with rights that
the serving process does not have, and again after an upgrade. With --stay it keeps
running: it rotates the CA, writes the leaf's Secret and repairs the configurations.`,
	})
	cmd.Flags().BoolVar(&stay, "stay", false, "keep running: rotate certificates and repair the webhook configurations")
	return cmd
}

func (s subcommands) serve() *cobra.Command {
	cmd := s.runs(false, (*manager.Manager).Start, &cobra.Command{
		Use:   "serve",
		Short: "Serve the webhooks that register has registered",
		Long: `Serve the webhooks. It reads the CA Secret and needs no rights on webhook
configurations. It waits until register has created the Secret. It runs reconcilers and
watchers too, unless --reconciler-user says that a process of that user does.

With --candidate it is a build that is not in force yet. It answers nobody and changes
nothing. The servers in force send it the admissions that they have answered (--mirror), and
it compares: admitkit_candidate_differs_total counts the differences, and the log has a few
examples of each. manifests --candidate makes the Deployment.`,
	})
	serve, candidate := cmd.RunE, false
	cmd.Flags().BoolVar(&candidate, "candidate", false, "compare with the servers that name this one by --mirror, and answer nobody")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if candidate {
			return s.candidate(cmd)
		}
		return serve(cmd, args)
	}
	return cmd
}

// candidate runs a build that is not in force yet.
func (s subcommands) candidate(cmd *cobra.Command) error {
	options, err := s.flags.connected(cmd)
	if err != nil {
		return wrong(err)
	}
	options = reading(options)
	options.RegisterWebHook = new(false)
	limitMemory(options.Logger)
	mgr, err := newManager(options, s.build)
	if err != nil {
		return err
	}
	for _, collector := range replay.Collectors() {
		if err := metrics.Registry.Register(collector); err != nil {
			return err
		}
	}
	return mgr.StartCandidate(cmd.Context(), func(webhooks []*webhook.Webhook, handling webhook.HandlerOptions) (http.Handler, error) {
		return replay.NewCandidate(webhooks, handling)
	})
}

func (s subcommands) reconcile() *cobra.Command {
	return s.runs(false, (*manager.Manager).Reconcile, &cobra.Command{
		Use:   "reconcile",
		Short: "Run the reconcilers and watchers, apart from what serves",
		Long: `Run the reconcilers, and the watchers that do not run in every server. Run it as a user
of its own, which alone has the rights of the reconcilers, and name that user to the
servers by --reconciler-user. Nobody has to reach this process.`,
	})
}

func (s subcommands) check() *cobra.Command {
	var timeout time.Duration
	cmd := s.runs(true, func(mgr *manager.Manager, ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return mgr.CheckRegistered(ctx)
	}, &cobra.Command{
		Use:   "check",
		Short: "Ask the API server whether the webhooks are registered, and answer",
		Long: `Compare the webhook configurations, and the conversions in CustomResourceDefinitions,
with what this program would register with these flags, and send a request through the
API server that has to come back through a webhook. The request is a dry run that creates
a ConfigMap in --webhook-namespace; nothing is changed. Of a program that only converts,
the conversions are compared, and nothing is sent. It fails if that does not succeed
within --timeout. Run it with the flags of the installation, as a user who may create
ConfigMaps there, and get the configurations and CustomResourceDefinitions.`,
	})
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to try")
	return cmd
}

func (s subcommands) unregister() *cobra.Command {
	var deployments []string
	var timeout time.Duration
	var ignoreNotFound bool
	cmd := s.runs(true, func(mgr *manager.Manager, ctx context.Context) error {
		if len(deployments) > 0 {
			if err := mgr.CheckOwner(ctx); err != nil {
				return err
			}
			if missing, err := mgr.MissingDeployments(ctx, deployments...); err != nil {
				return err
			} else if len(missing) > 0 && !ignoreNotFound {
				return fmt.Errorf("--scale-down: there is no Deployment %s: correct the name, or leave it out (--ignore-not-found)", strings.Join(missing, ", "))
			}
			waiting, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if err := mgr.ScaleDown(waiting, deployments...); err != nil {
				// The managers may be gone all the same, for example from a dead node.
				// Then nobody else would end what has to end.
				return errors.Join(err, mgr.RunRemovers(ctx))
			}
		}
		if err := mgr.UnregisterExtensions(ctx); err != nil {
			return err
		}
		return mgr.CheckUnregistered(ctx)
	}, &cobra.Command{
		Use:   "unregister",
		Short: "Remove the webhook configurations, what the extensions made, and the CA Secret",
		Long: `Remove what the extensions made that must not outlive them, the webhook configurations,
the Secrets and the Lease, and log each. Run it with the flags of the installation,
before you delete the rest: a configuration with failure policy Fail blocks what it
covers once nobody serves it. A running manager repairs what this command removes,
so name its Deployments in --scale-down. It is an error if the configurations come back.`,
	})
	cmd.Flags().StringSliceVar(&deployments, "scale-down", nil, "first scale these Deployments in --webhook-namespace to zero and wait until their Pods are gone")
	cmd.Flags().BoolVar(&ignoreNotFound, "ignore-not-found", false, "take a Deployment of --scale-down that does not exist for stopped; otherwise it is an error, and nothing is removed")
	cmd.Flags().DurationVar(&timeout, "scale-down-timeout", 2*time.Minute, "how long to wait for these Pods; after that, remove only what the extensions made")
	return cmd
}

// runs makes the command run a manager that registers or does not.
func (s subcommands) runs(registers bool, run func(*manager.Manager, context.Context) error, cmd *cobra.Command) *cobra.Command {
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options, err := s.flags.complete(cmd)
		if err != nil {
			return wrong(err)
		}
		options.RegisterWebHook = &registers
		limitMemory(options.Logger)
		mgr, err := newManager(options, s.build)
		if err != nil {
			return err
		}
		return run(mgr, cmd.Context())
	}
	return cmd
}

// shareOfMemory leaves a fifth for what the Go runtime does not count, and for what is
// allocated while it collects garbage, which the limit does not stop.
const shareOfMemory = 0.8

// limitMemory has the Go runtime keep to the memory limit of the container. A limit in
// the environment (GOMEMLIMIT, or AUTOMEMLIMIT with another fraction, or off) wins.
func limitMemory(log *zap.SugaredLogger) {
	limit, err := memlimit.Set(memlimit.WithRatio(shareOfMemory))
	switch {
	case err != nil:
		log.Infow("the memory limit of the container is unknown; set GOMEMLIMIT", "error", err)
	case limit == math.MaxInt64:
		log.Info("the memory of this process is not limited")
	default:
		log.Infow("the memory of this process is limited", "GOMEMLIMIT", limit)
	}
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

// Main runs the command until it ends or SIGINT or SIGTERM stops it. It prints the
// error on standard error and exits with a code of the package comment. A second
// signal ends the process without a drain.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
		os.Exit(ExitCode(err))
	}
}

// ExitCode returns the exit code for an error of the command, 0 for nil. Use it if
// you do not use [Main].
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

// wrongError means that the request is wrong, not that it failed.
type wrongError struct{ error }

func (e *wrongError) Unwrap() error { return e.error }

func wrong(err error) error { return &wrongError{err} }

// Wrong returns the error of a subcommand of your own for a request that is wrong: a flag,
// an argument or a manifest. [Main] exits with 2 for it.
func Wrong(err error) error {
	if err == nil {
		return nil
	}
	return wrong(err)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return wrong(err)
	}
	return nil
}
