package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/sink"
	"github.com/admitkit/admitkit/extension/audit/sink/auditevent"
	"github.com/admitkit/admitkit/extension/sandbox/broker"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// newBrokerCommand returns the command that gives credentials on lease.
func newBrokerCommand() *cobra.Command {
	var options broker.Options
	var clusterName string
	cmd := command.New("sandbox-broker", func(mgr *manager.Manager) error {
		if options.CertFile == "" || options.KeyFile == "" {
			return errors.New("--broker-cert-file and --broker-key-file: both are required")
		}
		if len(options.Namespaces) == 0 && mgr.GetNamespace() == "" {
			return errors.New("--sandbox-namespaces: name the namespaces in which HarnessRuns may run: the broker can read their Secrets")
		}
		// What is not on record is not issued, so the sink is Closed.
		return errors.Join(
			mgr.AddExtension(audit.NewRecorder(audit.Options{ClusterName: clusterName, Sinks: []audit.SinkOptions{
				{Sink: sink.NewLog()},
				{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed},
			}})),
			mgr.AddExtension(broker.New(options)))
	})
	cmd.Use = "broker"
	cmd.Short = "Give runs credentials on lease"
	cmd.Long = `Give runs the credentials that BrokerPolicies grant them, on lease, and revoke what was given
when they have ended: run "broker reconcile" in the cluster, in a namespace of its own, where the
leases are. "broker manifests" prints the manifests: apply the CRDs of config/crd first.

Each flag can also be set by an environment variable: --broker-address by
ADMITKIT_BROKER_ADDRESS. The flag wins.`
	flags := cmd.PersistentFlags()
	flags.StringVar(&options.Address, "broker-address", broker.DefaultAddress, "where the broker listens")
	flags.StringVar(&options.CertFile, "broker-cert-file", "", "certificate of the broker, in PEM; read again when it changes (required)")
	flags.StringVar(&options.KeyFile, "broker-key-file", "", "key of that certificate, in PEM (required)")
	flags.StringArrayVar(&options.Controllers, "broker-controller", nil, "user that may act for every run, such as system:serviceaccount:NAMESPACE:NAME; repeatable (default none)")
	flags.StringSliceVar(&options.Namespaces, "sandbox-namespaces", nil, "namespaces in which HarnessRuns run; repeatable (default: --namespace; required if that is empty)")
	flags.DurationVar(&options.LeaseDuration, "lease-duration", broker.DefaultLeaseDuration, "how long a proxy may use a credential that cannot be revoked before it asks again, from 30s to 1h")
	flags.StringVar(&options.GitHubURL, "github-url", broker.DefaultGitHubURL, "URL of GitHub's API")
	flags.StringVar(&clusterName, "cluster-name", "", "name of this cluster, which every record then has as its field cluster")
	for _, sub := range cmd.Commands() {
		switch sub.Name() {
		case "review", "register", "serve", "check", "unregister", "start": // about admissions, of which the controller has those of runs
			cmd.RemoveCommand(sub)
		}
	}
	return cmd
}
