// Package command is the command line that every extension gets, so that its
// author has one binary for one process or two, and a clean removal:
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
//	my-ext unregister remove the webhook configurations and the Secrets
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/admitkit/admitkit/manager"
)

// Build adds the extensions to a manager. It is called by every subcommand
// that needs them, with the same flags, so that names and paths agree.
type Build func(mgr *manager.Manager) error

// New returns the command. Flags of the author's own go onto its
// PersistentFlags; they are parsed when build is called.
func New(name string, build Build) *cobra.Command {
	f := &flags{}
	root := &cobra.Command{
		Use:           name,
		Short:         name + " answers Kubernetes admissions",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	f.bind(root)
	add := func(use, short, long string, registers bool, run func(*manager.Manager, context.Context) error) *cobra.Command {
		cmd := &cobra.Command{
			Use: use, Short: short, Long: long, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				options, err := f.complete()
				if err != nil {
					return err
				}
				options.RegisterWebHook = &registers
				mgr, err := manager.New(options)
				if err != nil {
					return err
				}
				if err := build(mgr); err != nil {
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
	add("unregister", "Remove the webhook configurations and the CA Secret",
		"Remove the webhook configurations, the Secrets and the Lease, and log each. Run it before uninstalling: a\nconfiguration without a server blocks what its failure policy Fail covers.",
		true, (*manager.Manager).UnregisterExtensions)
	return root
}

// Main runs the command until it ends or SIGINT or SIGTERM stops it, and exits:
// 0 on success, 1 with the error on standard error. A second signal ends the
// process without a drain.
func Main(cmd *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
		os.Exit(1)
	}
}

// flags are manager.Options as flags.
type flags struct {
	options       manager.Options
	podSelector   string
	failurePolicy string
	logLevel      string
	drainPeriod   time.Duration
}

func (f *flags) bind(cmd *cobra.Command) {
	o, set := &f.options, cmd.PersistentFlags()
	set.StringVar(&o.Namespace, "namespace", "", "namespace whose objects reach the extensions (default: all)")
	set.StringVar(&f.podSelector, "pod-selector", "", "label selector that narrows the Pods down, for example app=web (default: all)")
	set.StringVar(&o.WebhookNamespace, "webhook-namespace", os.Getenv("POD_NAMESPACE"), "namespace of the Service, the Secret and the Lease (default: $POD_NAMESPACE, then --namespace)")
	set.StringVar(&o.ServiceName, "service-name", "", "Service by which the API server reaches the webhooks")
	set.Int32Var(&o.ServicePort, "service-port", 0, "port of the Service (default 443)")
	set.StringVar(&o.AdvertiseHost, "advertise-host", "", "host in the webhooks' URL, when there is no Service (default: --host)")
	set.StringVar(&o.Host, "host", "", "address to listen on (default: all)")
	set.Int32Var(&o.Port, "port", manager.DefaultPort, "port to listen on")
	set.StringVar(&o.KubeConfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, ~/.kube/config, the Pod's service account)")
	set.StringVar(&o.OperatorFingerprint, "fingerprint", manager.DefaultFingerprint, "name that tells installations in one namespace apart")
	set.StringVar(&f.failurePolicy, "failure-policy", string(admissionregistrationv1.Fail), "Fail or Ignore: what becomes of objects while the webhook fails")
	set.BoolVar(&o.UnregisterOnStop, "unregister-on-stop", false, "start: remove the webhook configurations at the end, for a manager on a developer's machine")
	set.StringVar(&o.CertificateDir, "certificate-dir", "", "folder with tls.crt, tls.key and ca.crt, instead of a CA of our own")
	set.StringVar(&o.LeafSecretName, "leaf-secret-name", "", "Secret of type kubernetes.io/tls with the serving certificate, for servers that may not read the CA's key")
	set.BoolVar(&o.ForeignCABundle, "foreign-ca-bundle", false, "leave the caBundle to someone else, cert-manager's injector for example")
	set.StringToStringVar(&o.WebhookAnnotations, "webhook-annotations", nil, "annotations of the webhook configurations, for example cert-manager.io/inject-ca-from=my-system/my-ext")
	set.StringVar(&o.ClusterDomain, "cluster-domain", manager.DefaultClusterDomain, "domain of the cluster")
	set.DurationVar(&o.CALifetime, "ca-lifetime", 0, "validity of the CA (default 1 year)")
	set.DurationVar(&o.LeafLifetime, "leaf-lifetime", 0, "validity of the serving certificate (default 7 days)")
	set.DurationVar(&o.PropagationDelay, "propagation-delay", 0, "how long API servers have to learn of a new CA (default 1 min)")
	set.BoolVar(&o.IgnoreUntilProbed, "ignore-until-probed", false, "begin with failure policy Ignore, until a request through the API server came back")
	set.BoolVar(&o.NoProbe, "no-probe", false, "send no probe through the API server")
	set.StringSliceVar(&o.AllowOwnPods, "allow-own-pods", nil, "webhooks that may cover the manager's own Pods with failure policy Fail")
	set.BoolVar(&o.LeaderElection, "leader-election", false, "run reconcilers and watchers in one replica at a time")
	set.StringVar(&o.HealthAddress, "health-address", ":8081", "address of /healthz and /readyz; empty for none")
	set.StringVar(&o.MetricsAddress, "metrics-address", ":8080", "address of /metrics; empty for none")
	set.DurationVar(&f.drainPeriod, "drain-period", manager.DefaultDrainPeriod, "how long to go on serving, not ready, after being told to stop")
	set.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

func (f *flags) complete() (manager.Options, error) {
	options := f.options
	options.DrainPeriod = &f.drainPeriod
	policy := admissionregistrationv1.FailurePolicyType(f.failurePolicy)
	options.FailurePolicy = &policy
	var errs []error
	if f.podSelector != "" {
		selector, err := metav1.ParseToLabelSelector(f.podSelector)
		if err != nil {
			errs = append(errs, fmt.Errorf("--pod-selector: %w", err))
		}
		options.PodSelector = selector
	}
	level, err := zapcore.ParseLevel(f.logLevel)
	if err != nil {
		errs = append(errs, fmt.Errorf("--log-level: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return options, err
	}
	config := zap.NewProductionConfig()
	config.Level = zap.NewAtomicLevelAt(level)
	config.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	// Every decision counts: zap would keep the first hundred alike of a second.
	config.Sampling = nil
	logger, err := config.Build()
	if err != nil {
		return options, err
	}
	options.Logger = logger.Sugar()
	// The libraries underneath log through the same logger.
	ctrllog.SetLogger(zapr.NewLogger(logger))
	klog.SetLogger(zapr.NewLogger(logger))
	return options, nil
}
