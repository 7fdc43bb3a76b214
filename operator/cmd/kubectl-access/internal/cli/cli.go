package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Scheme has the kinds of Kubernetes and of admitkit.
var Scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(Scheme))
	utilruntime.Must(v1alpha1.AddToScheme(Scheme))
}

// Base has what all commands share.
type Base struct {
	genericiooptions.IOStreams
	// Flags say where the API server is, and as whom and in which namespace to work.
	Flags *genericclioptions.ConfigFlags
	// global are the Flags on the command line.
	global *pflag.FlagSet
}

// New returns what commands share that read and write these streams.
func New(streams genericiooptions.IOStreams) *Base {
	return &Base{IOStreams: streams, Flags: genericclioptions.NewConfigFlags(true), global: pflag.NewFlagSet("kubectl", pflag.ContinueOnError)}
}

// AddFlags adds the Flags to all commands below one.
func (c *Base) AddFlags(root *cobra.Command) {
	c.Flags.AddFlags(c.global)
	root.PersistentFlags().AddFlagSet(c.global)
	c.completeGlobal(root)
}

// Connect returns a client and the namespace to work in.
func (c *Base) Connect() (client.WithWatch, string, error) {
	namespace, _, err := c.Flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", err
	}
	config, err := c.Flags.ToRESTConfig()
	if err != nil {
		return nil, "", err
	}
	config.WarningHandler = c.WarningHandler()
	cl, err := client.NewWithWatch(config, client.Options{Scheme: Scheme})
	return cl, namespace, err
}

// WarningHandler prints what the API server warns of to standard error, as kubectl does.
// Without it controller-runtime's client would log that, and this program has no log.
func (c *Base) WarningHandler() rest.WarningHandler { return warner{c} }

type warner struct{ *Base }

// HandleWarningHeader implements [rest.WarningHandler].
func (w warner) HandleWarningHeader(code int, _, text string) {
	if code == 299 && text != "" { // the only one of Kubernetes
		w.Sayf("Warning: %s", Escape(text))
	}
}

// Exactly requires an argument for each name.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(args) < len(names) {
			return Exitf(CodeUsage, "%s is missing\nSee '%s --help'", names[len(args)], cmd.CommandPath())
		}
		return Exitf(CodeUsage, "unexpected argument %q: %s takes %d\nSee '%s --help'", args[len(names)], cmd.Name(), len(names), cmd.CommandPath())
	}
}

// Sayf prints to standard error, for the engineer, what is not a result.
func (c *Base) Sayf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.ErrOut, format+"\n", args...) // nothing else can report it
}

// Group returns a command that only has others. Without its RunE cobra takes a wrong word for a
// wish for help, and a script believes that something has been done.
func Group(cmd *cobra.Command, others ...*cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return Exitf(CodeUsage, "unknown command %q for %q\nSee '%s --help'", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	cmd.AddCommand(others...)
	return cmd
}
