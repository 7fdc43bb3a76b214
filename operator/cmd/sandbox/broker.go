package main

import (
	"errors"
	"net"
	"strconv"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// newBrokerCommand returns the command that gives credentials on lease.
func newBrokerCommand() *cobra.Command {
	var options broker.Options
	var clusterName string
	cmd := command.New("sandbox-broker", func(mgr *manager.Manager) error {
		if (options.CertFile == "") != (options.KeyFile == "") {
			return errors.New("--broker-cert-file and --broker-key-file: set both, or neither")
		}
		if len(options.Namespaces) == 0 && len(mgr.GetNamespaces()) == 0 {
			return errors.New("--sandbox-namespaces: name the namespaces in which SandboxRuns may run: the broker can read their Secrets")
		}
		// What is not on record is not issued, so the sink is Closed.
		return errors.Join(
			mgr.AddExtension(audit.NewRecorder(audit.Options{ClusterName: clusterName, Sinks: []audit.SinkOptions{
				{Sink: sink.NewLog()},
				{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed},
			}})),
			mgr.AddExtension(broker.New(options)))
	}, command.WithInstallOptions(func(o *manager.InstallOptions) {
		port := brokerPort(options.Address)
		o.Objects = append(o.Objects, brokerService(port))
		if o.NetworkPolicy != nil {
			o.Objects = append(o.Objects, brokerOpening(port))
		}
	}))
	cmd.Use = "broker"
	cmd.Short = "Give runs credentials on lease"
	cmd.Long = `Give runs the credentials that BrokerPolicies grant them, on lease, and revoke what was given
when they have ended: run "broker reconcile" in the cluster, in a namespace of its own, where the
leases are. "broker manifests" prints the manifests: apply the CRDs of operator/config/crd first.

Each flag can also be set by an environment variable: --broker-address by
ADMITKIT_BROKER_ADDRESS. The flag wins.`
	exemplify(cmd, `  sandbox broker manifests --image registry.example.com/sandbox:1.0 --webhook-namespace sandbox-broker \
    --sandbox-namespaces agents --broker-controller system:serviceaccount:sandbox-system:sandbox-reconciler | kubectl apply -f -`)
	flags := cmd.PersistentFlags()
	flags.StringVar(&options.Address, "broker-address", broker.DefaultAddress, "where the broker listens")
	flags.StringVar(&options.CertFile, "broker-cert-file", "", "certificate of the broker, in PEM; read again when it changes (default: one of its own, whose authority it writes into its ConfigMap sandbox-broker-ca)")
	flags.StringVar(&options.KeyFile, "broker-key-file", "", "key of that certificate, in PEM")
	flags.StringSliceVar(&options.ServingNames, "broker-serving-name", nil, "DNS name in the broker's own certificate; repeatable (default: those of the Service sandbox-broker)")
	flags.StringArrayVar(&options.Controllers, "broker-controller", nil, "user that may act for every run, such as system:serviceaccount:NAMESPACE:NAME; repeatable (default none)")
	flags.StringSliceVar(&options.Namespaces, "sandbox-namespaces", nil, "namespaces in which SandboxRuns run; repeatable (default: --namespace; required if that is empty)")
	flags.IntVar(&options.SourceConnections, "broker-source-connections", broker.DefaultSourceConnections, "connections that one address can have, and new ones a second; more where Pods reach the broker from the address of their node")
	flags.DurationVar(&options.LeaseDuration, "lease-duration", broker.DefaultLeaseDuration, "how long a proxy may use a credential that cannot be revoked before it asks again, from 30s to 1h")
	flags.StringVar(&options.GitHubURL, "github-url", broker.DefaultGitHubURL, "URL of GitHub's API")
	flags.StringVar(&clusterName, "cluster-name", "", "name of this cluster, which every record then has as its field cluster")
	for _, sub := range cmd.Commands() {
		switch sub.Name() {
		case "review", "scan", "explain", "replay", "register", "serve", "check", "unregister", "start": // about admissions, of which the controller has those of runs
			cmd.RemoveCommand(sub)
		}
	}
	return cmd
}

// brokerPort is the port at which the broker listens.
func brokerPort(address string) int32 {
	if _, text, err := net.SplitHostPort(address); err == nil {
		if parsed, err := strconv.ParseUint(text, 10, 16); err == nil && parsed != 0 {
			return int32(parsed)
		}
	}
	return 8443
}

// brokersPods selects the broker's Pods.
var brokersPods = map[string]string{"app.kubernetes.io/name": "sandbox-broker-reconciler"}

// brokerService is the Service before the broker's Pods.
func brokerService(port int32) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: protocol.ServiceName},
		Spec: corev1.ServiceSpec{
			Selector: brokersPods,
			Ports:    []corev1.ServicePort{{Name: "https", Port: port, TargetPort: intstr.FromInt32(port), Protocol: corev1.ProtocolTCP}},
		},
	}
}

// brokerOpening opens the port of the broker, which the installation's own policy does not know of. Who may connect is for
// the token to say: Pods of runs come from any namespace, and with some network plugins from the addresses of their nodes.
func brokerOpening(port int32) *networkingv1.NetworkPolicy {
	at, tcp := intstr.FromInt32(port), corev1.ProtocolTCP
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Name: protocol.ServiceName + "-port"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: brokersPods}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: &at, Protocol: &tcp}}}},
		},
	}
}
