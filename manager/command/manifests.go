package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/manager"
)

// ofThisMachine are the flags that do not apply to an installation in a cluster.
var ofThisMachine = []string{"kubeconfig", "help", "version", "image", "replicas"}

func newManifests(name string, f *flags, build Build) *cobra.Command {
	install := manager.InstallOptions{Name: name}
	cmd := &cobra.Command{
		Use:   "manifests --image IMAGE",
		Short: "Print the manifests of an installation",
		Long: `Print the manifests of an installation, ready for kubectl apply -f -: a registrar,
which alone may write webhook configurations and Secrets, the replicas that serve, and
those that reconcile, if an extension does. Each process has exactly the rights that the
extensions ask for in it. All processes get the flags
that you give here.

By default the Service has the program's name, the serving certificate is in a Secret
of its own, so that no server reads the CA's key, and reconcilers and watchers run in
one replica at a time.

The webhook configurations follow as comments: the registrar writes them, with the
caBundle, and repairs them.`,
		Example: fmt.Sprintf("  %s manifests --image registry.example.com/%s:1.0 --namespace apps --webhook-namespace %s-system | kubectl apply -f -", name, name, name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			installation, err := manifestsOf(cmd, f, build, install)
			if err != nil {
				return wrong(err)
			}
			return printInstallation(cmd.OutOrStdout(), installation)
		},
	}
	cmd.Flags().StringVar(&install.Image, "image", "", "container image of this program (required)")
	cmd.Flags().Int32Var(&install.Replicas, "replicas", 2, "number of Pods that serve")
	return cmd
}

func manifestsOf(cmd *cobra.Command, f *flags, build Build, install manager.InstallOptions) (*manager.Installation, error) {
	set := cmd.Flags()
	if err := readEnvironment(set); err != nil {
		return nil, err
	}
	defaults := map[string]string{}
	if f.options.Serving.AdvertiseHost == "" {
		defaults["service-name"] = install.Name
	}
	if f.options.Certificates.Dir == "" {
		defaults["leaf-secret-name"] = install.Name + "-certificate"
	}
	defaults["leader-election"] = "true"
	for flag, value := range defaults {
		if set.Changed(flag) {
			continue
		}
		if err := set.Set(flag, value); err != nil {
			return nil, err
		}
	}
	options, err := f.complete(cmd)
	if err != nil {
		return nil, err
	}
	mgr, err := newManager(withoutCluster(options), build)
	if err != nil {
		return nil, err
	}
	install.Args = arguments(set)
	return mgr.Manifests(install)
}

// arguments returns the flags that were given, for another process.
func arguments(set *pflag.FlagSet) []string {
	var args []string
	set.Visit(func(f *pflag.Flag) {
		if slices.Contains(ofThisMachine, f.Name) {
			return
		}
		value := f.Value.String()
		if several, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(several.GetSlice(), ",")
		} else if f.Value.Type() == "stringToString" {
			value = strings.Trim(value, "[]")
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

func printInstallation(w io.Writer, installation *manager.Installation) error {
	for i, object := range installation.Objects {
		text, err := document(object)
		if err != nil {
			return err
		}
		if i > 0 {
			text = "---\n" + text
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	for _, object := range installation.Configurations {
		text, err := document(object)
		if err != nil {
			return err
		}
		text = "# The registrar writes and repairs:\n" + strings.TrimSuffix(text, "\n")
		if _, err := io.WriteString(w, "---\n"+strings.ReplaceAll(text, "\n", "\n# ")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// document returns the YAML of an object without its status.
func document(object client.Object) (string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return "", err
	}
	delete(content, "status")
	text, err := yaml.Marshal(content)
	return string(text), err
}
