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

// HandleWarningHeader implements [rest.WarningHandler].
func (w warner) HandleWarningHeader(code int, _, text string) {
	if code == 299 && text != "" { // the only one of Kubernetes
		w.sayf("Warning: %s", escape(text))
	}
}

// group returns a command that only has others. Without its RunE cobra takes a wrong word for a
// wish for help, and a script believes that something has been done.
func group(cmd *cobra.Command, others ...*cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return exitf(codeUsage, "unknown command %q for %q\nSee '%s --help'", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	cmd.AddCommand(others...)
	return cmd
}
