package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// controller has the flags, and adds the extensions.
type controller struct {
	cmd          *cobra.Command
	options      sandbox.Options
	auditObjects bool
	clusterName  string
}

// newControllerCommand returns the command that admits and reconciles SandboxRuns.
func newControllerCommand() *cobra.Command {
	c := &controller{}
	c.cmd = command.New("sandbox", c.addTo, command.WithOptionFlags("sandbox options: ", "sandbox"), command.WithInstallOptions(func(o *manager.InstallOptions) {
		if c.options.Proxy.Image != "" {
			o.Objects = append(o.Objects, sandbox.RootSecret())
		}
	}))
	c.cmd.Use = "controller"
	c.cmd.Short = "Admit and run SandboxRuns"
	c.cmd.Long = `Admit SandboxRuns and their templates, and run them. "controller manifests" prints the
manifests of an installation: apply the CRDs of operator/config/crd first.

Each flag can also be set by an environment variable: --sandbox-namespaces by
ADMITKIT_SANDBOX_NAMESPACES. The flag wins.`
	exemplify(c.cmd, `  sandbox controller manifests --image registry.example.com/sandbox:1.0 --webhook-namespace sandbox-system \
    --sandbox-namespaces agents | kubectl apply -f -`)
	c.bind(c.cmd.PersistentFlags())
	return c.cmd
}

func (c *controller) bind(flags *pflag.FlagSet) {
	o := &c.options
	flags.StringSliceVar(&o.Namespaces, "sandbox-namespaces", nil, "namespaces in which SandboxRuns run; repeatable (default: --namespace; required if that is empty)")
	flags.StringVar(&o.SeedImage, "sandbox-seed-image", "", "image of this program, in which the git repositories of Workspaces are fetched (default none: Workspaces with a seed must name an image)")
	flags.DurationVar(&o.StartTimeout, "sandbox-start-timeout", sandbox.DefaultStartTimeout, "how long the work of a run has to begin, from when the run has its Workspace or its Job is to be made; it fails then")
	flags.BoolVar(&o.Interactive, "sandbox-interactive", false, "let SandboxRuns be Interactive, where their templates allow it: the controller then reads AuditEvents, which admitkit --audit-objects makes, to end runs that nobody uses")
	flags.IntVar(&o.Workers, "sandbox-workers", sandbox.DefaultWorkers, "number of SandboxRuns that are worked on at a time")
	flags.StringVar((*string)(&o.Egress.Mode), "sandbox-network-policy", string(egress.ModeAuto), "whether network policies are enforced in this cluster, and so hold Pods to the egress of their template: on; auto, which looks for a network plugin in kube-system, and has runs wait if there is none; "+
		"or off, with which Pods run without a policy, and say so")
	flags.BoolVar(&o.Egress.Cilium, "sandbox-cilium", false, "hold Pods by CiliumNetworkPolicies, if the API server serves them at the start")
	flags.StringSliceVar(&o.Egress.PodCIDRs, "cluster-pod-cidrs", nil, "addresses of the cluster's Pods, of IPv4 and IPv6 where it has both, which the internet in egress does not include (default none, and no template may have the internet)")
	flags.StringSliceVar(&o.Egress.ServiceCIDRs, "cluster-service-cidrs", nil, "addresses of the cluster's Services, as for Pods")
	command.NameOptions(flags, "sandbox-network-policy", "Egress: Mode")
	command.NameOptions(flags, "cluster-pod-cidrs", "Egress: PodCIDRs")
	command.NameOptions(flags, "cluster-service-cidrs", "Egress: ServiceCIDRs")
	flags.StringVar(&o.Proxy.Image, "sandbox-proxy-image", "", "image of this program, of which the proxies are that hold runs and seeds to names (required with --broker-namespace; default none: templates and Workspaces with egress.hosts are refused)")
	flags.StringVar(&o.Proxy.UpstreamCA, "sandbox-proxy-upstream-ca", "", "ConfigMap in the controller's namespace whose key ca.crt has authorities, in PEM, that all proxies accept of servers, besides those of the internet (default none)")
	flags.StringVar(&o.Broker.Namespace, "broker-namespace", "", "namespace of the broker (default none: runs to whose templates BrokerPolicies apply fail)")
	flags.StringVar(&o.Broker.URL, "broker-url", "", "URL of the broker (default https://sandbox-broker.NAMESPACE.svc:8443); Pods of runs reach --broker-namespace at its port")
	flags.StringVar(&o.Broker.CAFile, "broker-ca-file", "", "authorities of the broker's certificate, in PEM (default: what the broker writes into its ConfigMap sandbox-broker-ca)")
	flags.StringVar(&o.Broker.ServiceAccount, "broker-account", sandbox.DefaultServiceAccount, "ServiceAccount of the reconcilers, as which they ask the broker; name it there in --broker-controller")
	flags.StringVar(&o.Collector.Namespace, "sandbox-collector-namespace", "", "namespace of admitkit, if it records sessions in SandboxRuns: their network policies let all of them reach its Pods at --sandbox-collector-port (default none, and a recorder reaches what its template names)")
	flags.Int32Var(&o.Collector.Port, "sandbox-collector-port", 0, fmt.Sprintf("port of admitkit --sessions-port (default %d with --sandbox-collector-namespace)", sandbox.DefaultCollectorPort))
	flags.BoolVar(&c.auditObjects, "audit-objects", true, "record what happens to SandboxRuns as AuditEvents, and not only in the log; admitkit --audit-objects deletes these at the end of their retention")
	flags.StringVar(&c.clusterName, "cluster-name", "", "name of this cluster, which every record then has as its field cluster")
}

func (c *controller) addTo(mgr *manager.Manager) error {
	if len(c.options.Namespaces) == 0 && len(mgr.GetNamespaces()) == 0 {
		return errors.New("--sandbox-namespaces: name the namespaces in which SandboxRuns may run")
	}
	if c.options.Egress.Mode == egress.ModeNone {
		return errors.New("--sandbox-network-policy: must be on, off or auto")
	}
	if c.options.Broker.Namespace == "" { // the account has a default
		c.options.Broker.ServiceAccount = ""
	}
	sinks := []audit.SinkOptions{{Sink: sink.NewLog()}}
	if c.auditObjects {
		sinks = append(sinks, audit.SinkOptions{Sink: auditevent.New(auditevent.Options{})})
	}
	return errors.Join(
		mgr.AddExtension(audit.NewRecorder(audit.Options{Sinks: sinks, ClusterName: c.clusterName})),
		mgr.AddExtension(sandbox.New(c.options)),
		mgr.AddExtension(sandbox.BrokerPolicies{Namespaces: c.options.Namespaces}))
}
