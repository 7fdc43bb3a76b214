package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// cli has what all commands share.
type cli struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
	// global are the flags that the command line gives it.
	global *pflag.FlagSet
}

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
		c.runCommand(), c.runsCommand(),
		c.auditCommand(), c.sessionsCommand(), c.migrateCommand(), c.versionCommand(),
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

// connect returns a client and the namespace to work in.
func (c *cli) connect() (client.WithWatch, string, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", err
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, "", err
	}
	config.WarningHandler = warner{c}
	cl, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	return cl, namespace, err
}

// warner prints what the API server warns of to standard error, as kubectl does. Without it controller-runtime's client
// would log that, and this program has no log.
type warner struct{ *cli }

// HandleWarningHeader implements [rest.WarningHandler].
func (w warner) HandleWarningHeader(code int, _, text string) {
	if code == 299 && text != "" { // the only one of Kubernetes
		w.sayf("Warning: %s", escape(text))
	}
}

// exactly requires an argument for each name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(args) < len(names) {
			return exitf(codeUsage, "%s is missing\nSee '%s --help'", names[len(args)], cmd.CommandPath())
		}
		return exitf(codeUsage, "unexpected argument %q: %s takes %d\nSee '%s --help'", args[len(names)], cmd.Name(), len(names), cmd.CommandPath())
	}
}

// sayf prints to standard error, for the engineer, what is not a result.
func (c *cli) sayf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.ErrOut, format+"\n", args...) // nothing else can report it
}
