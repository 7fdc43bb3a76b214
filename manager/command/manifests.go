package command

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/manager"
)

// ofThisMachine are the flags that do not apply to an installation in a cluster.
var ofThisMachine = []string{"kubeconfig", "help", "version"}

// install is manager.InstallOptions in the form of flags.
type install struct {
	flags   *flags
	build   Build
	options manager.InstallOptions

	with             []string
	recursive        bool
	requests, limits []string // NAME=QUANTITY
	scan             manager.ScanOptions
	networkPolicy    bool
	apiServers       []string
}

func newManifests(name string, f *flags, build Build) *cobra.Command {
	i := &install{flags: f, build: build, options: manager.InstallOptions{Name: name}}
	cmd := &cobra.Command{
		Use:   "manifests --image IMAGE",
		Short: "Print the manifests of an installation",
		Long: `Print the manifests of an installation, ready for kubectl apply -f -: a registrar,
which alone may write webhook configurations and Secrets, the replicas that serve, and
those that reconcile, if an extension does. Each process has exactly the rights that the
extensions ask for in it. All processes get the flags
that you give here, but for those of this command.

By default the Service has the program's name, the serving certificate is in a Secret
of its own, so that no server reads the CA's key, and reconcilers and watchers run in
one replica at a time.

The webhook configurations follow as comments: the registrar writes them, with the
caBundle, and repairs them.`,
		Example: fmt.Sprintf("  %s manifests --image registry.example.com/%s:1.0 --namespace apps --webhook-namespace %s-system | kubectl apply -f -", name, name, name),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			installation, err := i.installation(cmd)
			if err != nil {
				return wrong(err)
			}
			for _, warning := range installation.Warnings {
				if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning); err != nil {
					return err
				}
			}
			return printInstallation(cmd.OutOrStdout(), installation)
		},
	}
	i.bind(cmd.Flags())
	return cmd
}

func (i *install) bind(set *pflag.FlagSet) {
	set.StringVar(&i.options.Image, "image", "", "container image of this program (required)")
	set.Int32Var(&i.options.Replicas, "replicas", 2, "number of Pods that serve")
	set.StringSliceVar(&i.with, "with", nil, "manifests of your own objects, such as CustomResourceDefinitions, to print too: a file, a folder, or - for standard input")
	set.BoolVarP(&i.recursive, "recursive", "R", false, "read subfolders too")
	set.StringSliceVar(&i.requests, "requests", nil, "what each container requests; empty for nothing (default cpu=50m,memory=64Mi)")
	set.StringSliceVar(&i.limits, "limits", nil, "limits of each container; empty for none (default memory=256Mi)")
	set.StringSliceVar(&i.options.ImagePullSecrets, "image-pull-secrets", nil, "Secrets in --webhook-namespace by which the nodes pull the image")
	set.BoolVar(&i.options.MetricsService, "metrics-service", false, "add a Service with the metrics of all Pods")
	set.DurationVar(&i.scan.Every, "scan-every", 0, "add a Deployment that scans what the cluster stores again and again, after this time; see scan (default: none)")
	set.BoolVar(&i.scan.Reports, "scan-reports", false, "with --scan-every: keep a Report for each object with a finding")
	set.StringVar(&i.options.Candidate, "candidate", "", "container image of the next build: add a Deployment of it that answers nobody, and compares with what the servers answer; see serve --candidate (default: none)")
	set.BoolVar(&i.networkPolicy, "network-policy", false, "add a NetworkPolicy that admits traffic to the ports of webhooks, health checks and metrics only (default: with --api-servers)")
	set.StringSliceVar(&i.apiServers, "api-servers", nil, "addresses of the API servers, such as 10.0.0.10 or 10.0.0.0/28, which alone may then reach the webhooks, by a NetworkPolicy (default: everybody)")
}

// installation returns what to print.
func (i *install) installation(cmd *cobra.Command) (*manager.Installation, error) {
	set := cmd.Flags()
	if err := readEnvironment(set); err != nil {
		return nil, err
	}
	if err := i.setDefaults(set); err != nil {
		return nil, err
	}
	options, err := i.flags.complete(cmd)
	if err != nil {
		return nil, err
	}
	mgr, err := newManager(withoutCluster(options), i.build)
	install, errOfInstall := i.complete(cmd)
	if errOfInstall == nil && install.Image == "" {
		errOfInstall = errors.New("--image: required: the container image of the program, such as registry.example.com/my-ext:1.0")
	}
	if err := errors.Join(err, errOfInstall); err != nil {
		return nil, err
	}
	var table kinds.Table
	if install.Objects, err = place(&table, install.Objects, mgr.GetWebhookNamespace()); err != nil {
		return nil, err
	}
	installation, err := mgr.Manifests(install)
	if err != nil {
		return nil, err
	}
	installation.Warnings = append(installation.Warnings, notMounted(set)...)
	return installation, offline.KindsOf(&table).CheckInstallation(installation.Webhooks)
}

// setDefaults sets the flags that an installation has unless they are given.
func (i *install) setDefaults(set *pflag.FlagSet) error {
	defaults := map[string]string{"leader-election": "true"}
	if i.flags.options.Serving.AdvertiseHost == "" {
		defaults["service-name"] = i.options.Name
	}
	if i.flags.options.Certificates.Dir == "" {
		defaults["leaf-secret-name"] = i.options.Name + "-certificate"
	}
	for flag, value := range defaults {
		if set.Changed(flag) {
			continue
		}
		if err := set.Set(flag, value); err != nil {
			return err
		}
	}
	return nil
}

// complete returns the options of the flags.
func (i *install) complete(cmd *cobra.Command) (manager.InstallOptions, error) {
	options := i.options
	options.Args = arguments(cmd)
	for parent := cmd.Parent(); parent.HasParent(); parent = parent.Parent() { // New's may be a subcommand itself
		options.Subcommand = slices.Insert(options.Subcommand, 0, parent.Name())
	}
	objects, err := readManifests(cmd.InOrStdin(), i.with, i.recursive)
	if err != nil {
		return options, fmt.Errorf("--with: %w", err)
	}
	for _, object := range objects {
		options.Objects = append(options.Objects, object.Unstructured)
	}
	if options.Resources, err = i.resources(cmd.Flags()); err != nil {
		return options, err
	}
	if len(i.apiServers) > 0 && cmd.Flags().Changed("network-policy") && !i.networkPolicy {
		return options, errors.New("--api-servers: it says whom the NetworkPolicy admits: leave out --network-policy=false")
	}
	if i.networkPolicy || len(i.apiServers) > 0 {
		peers, err := peersOf(i.apiServers)
		if err != nil {
			return options, err
		}
		options.NetworkPolicy = &manager.NetworkPolicyOptions{APIServers: peers}
	}
	if cmd.Flags().Changed("scan-every") {
		options.Scan = &i.scan
	} else if i.scan.Reports {
		return options, errors.New("--scan-reports: set --scan-every too")
	}
	for _, change := range i.flags.changeInstall {
		change(&options)
	}
	return options, nil
}

// resources returns the requests and limits. Each that is not given has its default.
func (i *install) resources(set *pflag.FlagSet) (*corev1.ResourceRequirements, error) {
	resources := manager.DefaultResources()
	for _, of := range []struct {
		flag  string
		given []string
		into  *corev1.ResourceList
	}{{"requests", i.requests, &resources.Requests}, {"limits", i.limits, &resources.Limits}} {
		if !set.Changed(of.flag) {
			continue
		}
		*of.into = corev1.ResourceList{}
		for _, text := range of.given {
			name, amount, _ := strings.Cut(text, "=")
			quantity, err := resource.ParseQuantity(amount)
			if err != nil {
				return nil, fmt.Errorf("--%s: %q: must be like memory=256Mi: %w", of.flag, text, err)
			}
			(*of.into)[corev1.ResourceName(name)] = quantity
		}
	}
	return resources, nil
}

// peersOf returns addresses as a NetworkPolicy has them.
func peersOf(addresses []string) ([]networkingv1.NetworkPolicyPeer, error) {
	var peers []networkingv1.NetworkPolicyPeer
	for _, text := range addresses {
		block, err := netip.ParsePrefix(text)
		if err != nil {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("--api-servers: %q: must be an address, such as 10.0.0.10, or a CIDR, such as 10.0.0.0/28", text)
			}
			block = netip.PrefixFrom(address, address.BitLen())
		}
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: block.Masked().String()}})
	}
	return peers, nil
}

// place returns the author's objects where they are in a cluster: those that name no
// namespace in the manager's own, or in none. known gets the kinds that they define.
func place(known *kinds.Table, objects []client.Object, namespace string) ([]client.Object, error) {
	placed := make([]client.Object, len(objects))
	for n, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		if read := (&unstructured.Unstructured{Object: content}); kinds.IsCRD(read) {
			if err := known.Add(read); err != nil {
				return nil, err
			}
		}
		placed[n] = object.DeepCopyObject().(client.Object)
	}
	for _, object := range placed {
		kind := object.GetObjectKind().GroupVersionKind()
		if kind.Empty() { // a Go type of Kubernetes
			if registered, err := apiutil.GVKForObject(object, clientgoscheme.Scheme); err == nil {
				kind = registered
			}
		}
		switch {
		case !known.Namespaced(kind.GroupKind()):
			object.SetNamespace("")
		case object.GetNamespace() == "":
			object.SetNamespace(namespace)
		}
	}
	return placed, nil
}

// notMounted warns of files and folders that flags name, those of [cobra.MarkFlagFilename]
// and [cobra.MarkFlagDirname]: the Deployments have no volumes.
func notMounted(set *pflag.FlagSet) (warnings []string) {
	set.Visit(func(f *pflag.Flag) {
		_, isFile := f.Annotations[cobra.BashCompFilenameExt]
		_, isFolder := f.Annotations[cobra.BashCompSubdirsInDir]
		if !isFile && !isFolder || f.Value.String() == "" || slices.Contains(ofThisMachine, f.Name) {
			return
		}
		warnings = append(warnings, fmt.Sprintf("--%s=%s: the Deployments mount no volume at this path: add one with what is there, such as a Secret or a ConfigMap, for example with a patch of Kustomize", f.Name, f.Value))
	})
	return warnings
}

// arguments returns the flags that were given, for another process.
func arguments(cmd *cobra.Command) []string {
	var args []string
	own := cmd.LocalNonPersistentFlags()
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(ofThisMachine, f.Name) || own.Lookup(f.Name) != nil {
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
	for _, warning := range installation.Warnings {
		if _, err := fmt.Fprintf(w, "# WARNING: %s\n---\n", warning); err != nil {
			return err
		}
	}
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

// document returns the YAML of an object without its status, and without the rules that
// Kubernetes aggregates: to apply the manifests again would take them away for a moment.
func document(object client.Object) (string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return "", err
	}
	delete(content, "status")
	if content["aggregationRule"] != nil {
		delete(content, "rules")
	}
	text, err := yaml.Marshal(content)
	return string(text), err
}
