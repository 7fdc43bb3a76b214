package command

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlzap "sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/admitkit/admitkit/manager"
)

// flags are manager.Options in the form of flags.
type flags struct {
	options       manager.Options
	podSelector   string
	failurePolicy string
	modes         map[string]string
	setup         bool
	probe         bool
	drainPeriod   time.Duration
	log           ctrlzap.Options
	// bound are the names of the flags that bind defines. Authors define others.
	bound []string
	// change are the functions of WithOptions.
	change []func(*manager.Options)
	// changeInstall are the functions of WithInstallOptions.
	changeInstall []func(*manager.InstallOptions)
	ofExtensions  []optionFlags
}

// bind defines the flags. The program's name distinguishes it from others, if it can.
func (f *flags) bind(cmd *cobra.Command, name string) {
	o, set := &f.options, cmd.PersistentFlags()
	set.StringSliceVar(&o.Namespaces, "namespace", nil, "watched namespaces, whose objects the extensions receive; repeatable, or a,b (default: all)")
	set.StringVar(&f.podSelector, "pod-selector", "", "label selector that restricts the Pods, for example app=web (default: all)")
	set.StringVar(&o.WebhookNamespace, "webhook-namespace", os.Getenv("POD_NAMESPACE"), "manager's own namespace, which has the Service, the Secret and the Lease (default: $POD_NAMESPACE, then --namespace, if that is one)")
	set.StringVar(&o.ServiceName, "service-name", "", "Service through which the API server calls the webhooks")
	set.Int32Var(&o.Serving.ServicePort, "service-port", 0, "port of the Service (default 443)")
	set.StringVar(&o.Serving.AdvertiseHost, "advertise-host", "", "host in the webhooks' URL, if there is no Service (default: --host)")
	set.StringVar(&o.Host, "host", "", "address to listen on (default: all)")
	set.Int32Var(&o.Port, "port", manager.DefaultPort, "port to listen on; start takes a free one if it is 0")
	set.StringVar(&o.KubeConfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, ~/.kube/config, the Pod's service account)")
	if len(validation.IsDNS1123Label(name)) > 0 {
		name = ""
	}
	set.StringVar(&o.OperatorFingerprint, "fingerprint", name, "name that distinguishes installations with one --webhook-namespace, and programs on one host")
	set.StringVar(&f.failurePolicy, "failure-policy", string(admissionregistrationv1.Fail), "Fail or Ignore: what happens to objects while the webhook fails")
	set.BoolVar(&o.Registration.UnregisterOnStop, "unregister-on-stop", false, "start: remove the webhook configurations when it stops, for a manager on a developer's machine")
	set.BoolVar(&f.setup, "setup-certificate", true, "create the CA's Secret and repair it (serve does so only if you set this)")
	set.StringVar(&o.SetupCertificateName, "setup-certificate-name", "", "Secret of the CA (default FINGERPRINT-setupcertificate)")
	set.StringVar(&o.Certificates.Dir, "certificate-dir", "", "folder with tls.crt, tls.key and ca.crt, in place of the manager's own CA")
	set.StringVar(&o.Certificates.LeafSecretName, "leaf-secret-name", "", "Secret of type kubernetes.io/tls with the serving certificate, for servers that may not read the CA's key")
	set.BoolVar(&o.Registration.ForeignCABundle, "foreign-ca-bundle", false, "leave the caBundle to another program, such as cert-manager's injector")
	set.StringToStringVar(&o.Registration.Annotations, "webhook-annotations", nil, "annotations of the webhook configurations, for example cert-manager.io/inject-ca-from=my-system/my-ext")
	set.StringVar(&o.Serving.ClusterDomain, "cluster-domain", manager.DefaultClusterDomain, "DNS domain of the cluster")
	set.DurationVar(&o.Certificates.CALifetime, "ca-lifetime", 0, "validity of the CA (default 1 year)")
	set.DurationVar(&o.Certificates.LeafLifetime, "leaf-lifetime", 0, "validity of the serving certificate (default 7 days)")
	set.DurationVar(&o.Certificates.PropagationDelay, "propagation-delay", 0, "how long API servers have to learn of a new CA, or of new paths (default 1 min)")
	set.BoolVar(&o.Registration.IgnoreUntilProbed, "ignore-until-probed", false, "begin with failure policy Ignore, until a request through the API server has come back")
	set.BoolVar(&f.probe, "probe", true, "send a request through the API server, to learn that it comes back through a webhook")
	set.StringSliceVar(&o.Registration.AllowOwnPods, "allow-own-pods", nil, "webhooks that may match the manager's own Pods with failure policy Fail")
	set.StringSliceVar(&o.Registration.ExcludeNamespaces, "exclude-namespaces", nil, "namespaces that no webhook receives, such as those of a network plugin, whose Pods must start before the manager's: calico-system,tigera-operator")
	set.StringToStringVar(&f.modes, "mode", nil, "modes of extensions: NAME=enforce, warn (deny and change nothing, and say so to clients) or observe (only count it); repeatable, NAME * for all others that may")
	set.StringVar(&o.Registration.ModesFile, "modes-file", "", "YAML file with modes of extensions, also in some namespaces only; it is read again when it changes")
	_ = cobra.MarkFlagFilename(set, "modes-file") // it is there
	set.StringSliceVar(&o.Registration.TolerateSelectorTerms, "tolerate-selector-terms", nil, "terms, KEY=VALUE or KEY, by which others may exclude namespaces from the webhooks, for example control-plane=true,kubernetes.azure.com/managedby=aks")
	set.StringVar(&o.WatcherStartRV, "watcher-start-rv", "", "resource version: watchers do not see Pods that last changed at it or before (default: they see every Pod)")
	set.IntVar(&o.Watching.QueueLength, "watcher-queue-length", manager.DefaultWatcherQueueLength, "how many events wait for a slow watcher; it sees only the resulting state of those beyond")
	set.BoolVar(&o.Watching.LeaderElection, "leader-election", false, "run reconcilers and watchers in one replica at a time")
	set.StringVar(&o.Watching.ReconcilerUser, "reconciler-user", "", "serve, reconcile: user as which another process reconciles, or this one, such as system:serviceaccount:NAMESPACE:NAME (default: none, serve reconciles itself)")
	f.bindServing(set)
	f.log.TimeEncoder = zapcore.RFC3339NanoTimeEncoder
	zapFlags := flag.NewFlagSet("", flag.ContinueOnError)
	f.log.BindFlags(zapFlags)
	set.AddGoFlagSet(zapFlags)
	set.Lookup("zap-time-encoding").Usage = "Zap time encoding (one of 'epoch', 'millis', 'nano', 'iso8601', 'rfc3339' or 'rfc3339nano', the default)."
	set.Lookup("zap-stacktrace-level").Usage = "Zap level at and above which a line has a stack trace (one of 'info', 'error' or 'panic', the default)."
	set.VisitAll(func(flag *pflag.Flag) { f.bound = append(f.bound, flag.Name) })
}

// bindServing defines the flags of the servers.
func (f *flags) bindServing(set *pflag.FlagSet) {
	o := &f.options
	set.Int64Var(&o.Serving.MaxBodyBytes, "max-body-bytes", 0, "size of the largest admission request that is read (default 8 MiB)")
	set.IntVar(&o.Serving.MaxInFlight, "max-in-flight", 0, "how many requests each webhook handles at a time (default 1024)")
	set.Int64Var(&o.Serving.MaxMemoryBytes, "max-memory-bytes", 0, "what the requests of all webhooks may occupy together (default a third of the memory limit, 512 MiB without one)")
	set.IntVar(&o.Serving.MaxConnections, "max-connections", 0, "how many connections the webhooks have at a time (default 512)")
	set.StringVar(&o.Serving.TLSMinVersion, "tls-min-version", "", "oldest version of TLS that the webhooks accept, 1.2 or 1.3 (default 1.2)")
	set.StringSliceVar(&o.Serving.TLSCipherSuites, "tls-cipher-suites", nil, "cipher suites of TLS 1.2, by the names of Go's crypto/tls (default: Go's)")
	set.BoolVar(&o.Serving.PlainPaths, "plain-paths", false, "register and serve the webhooks at paths that anybody can guess; a server needs --client-ca for it")
	set.StringVar(&o.Serving.ClientCAFile, "client-ca", "", "file with the CA of clients: only those with its certificate may connect to the webhooks, so API servers must present one (default: everybody may)")
	_ = cobra.MarkFlagFilename(set, "client-ca") // it is there
	set.StringSliceVar(&o.Serving.ClientNames, "client-names", nil, "clients that may connect, by a name in their certificate (default: all of --client-ca)")
	set.StringVar(&o.Serving.ExemptionsFile, "exemptions-file", "", "YAML file with exemptions from extensions; it is read again when it changes")
	_ = cobra.MarkFlagFilename(set, "exemptions-file") // it is there
	set.BoolVar(&o.Serving.ChangedBy, "changed-by", false, "have objects that an extension changes say so in the annotation admitkit.dev/changed-by, with the program's version and the extensions' names")
	set.StringVar(&o.Serving.RecordDir, "record", "", "folder in which to keep admissions with their answers, for replay; secrets that can be recognized are replaced (default: none, nothing is recorded)")
	_ = cobra.MarkFlagDirname(set, "record") // it is there
	set.Float64Var(&o.Serving.RecordShare, "record-share", 0, "share of the admissions to record, such as 0.1 (default 1, all)")
	set.Int64Var(&o.Serving.RecordLimitBytes, "record-limit", 0, "bytes that the recordings may occupy on disk; the oldest are removed (default 1 GiB)")
	set.StringVar(&o.Serving.Mirror, "mirror", "", "host, or HOST:PORT, of a candidate (serve --candidate), which is sent each admission with its answer and compares (default: none)")
	set.StringVar(&o.Serving.HealthAddress, "health-address", ":8081", "address of /healthz and /readyz, another for each process on a machine; empty for none")
	set.StringVar(&o.Serving.MetricsAddress, "metrics-address", ":8080", "address of /metrics, another for each process on a machine; empty for none")
	set.BoolVar(&o.Serving.MetricsSecure, "metrics-secure", false, "serve /metrics over HTTPS, and only to those whom RBAC lets get it")
	set.DurationVar(&f.drainPeriod, "drain-period", manager.DefaultDrainPeriod, "how long to keep serving, not ready, after the signal to stop")
}

// ofReview are the flags that change what a review says.
var ofReview = []string{"namespace", "pod-selector", "webhook-namespace", "fingerprint", "failure-policy", "exclude-namespaces", "mode", "modes-file", "exemptions-file", "reconciler-user", "zap-log-level"}

// hide keeps the flags out of the help that change nothing in a command, for which only some
// count. show lists them again.
func (f *flags) hide(set *pflag.FlagSet, count []string) (show func()) {
	var hidden []*pflag.Flag
	set.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(f.bound, flag.Name) && !slices.Contains(count, flag.Name) && !flag.Hidden {
			flag.Hidden = true
			hidden = append(hidden, flag)
		}
	})
	return func() {
		for _, flag := range hidden {
			flag.Hidden = false
		}
	}
}

// hideInHelp keeps the other flags out of the help of a subcommand for which only some count.
func (f *flags) hideInHelp(cmd *cobra.Command, count []string) {
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		defer f.hide(cmd.InheritedFlags(), count)()
		cmd.Parent().HelpFunc()(cmd, args)
	})
}

// complete returns the options. The flags must be parsed.
func (f *flags) complete(cmd *cobra.Command) (manager.Options, error) {
	if err := readEnvironment(cmd.Flags()); err != nil {
		return manager.Options{}, err
	}
	options := f.options
	if options.Port == 0 {
		options.Port = manager.FreePort
	}
	options.Serving.DrainPeriod = &f.drainPeriod
	options.Registration.Probe = &f.probe
	policy := admissionregistrationv1.FailurePolicyType(f.failurePolicy)
	options.FailurePolicy = &policy
	if cmd.Flags().Changed("setup-certificate") {
		options.SetupCertificate = &f.setup
	}
	if f.podSelector != "" {
		selector, err := metav1.ParseToLabelSelector(f.podSelector)
		if err != nil {
			return options, fmt.Errorf("--pod-selector: %w", err)
		}
		options.PodSelector = selector
	}
	if cmd.Flags().Changed("record-share") && options.Serving.RecordShare == 0 {
		return options, errors.New("--record-share: 0 records nothing: leave out --record, or set a share such as 0.1")
	}
	names := slices.SortedFunc(maps.Keys(f.modes), func(a, b string) int { // the first rule that holds counts
		if a == "*" || b == "*" {
			return cmp.Compare(b, a)
		}
		return cmp.Compare(a, b)
	})
	for _, name := range names {
		rule := manager.ModeRule{Extensions: []string{name}}
		if err := rule.Mode.UnmarshalText([]byte(f.modes[name])); err != nil {
			return options, fmt.Errorf("--mode: %s=%w", name, err)
		}
		options.Registration.Modes = append(options.Registration.Modes, rule)
	}
	logger := f.newLogger()
	options.Logger = logger.Sugar()
	// controller-runtime and client-go log through the same logger.
	ctrllog.SetLogger(zapr.NewLogger(logger))
	klog.SetLogger(zapr.NewLogger(logger))
	for _, change := range f.change {
		change(&options)
	}
	return options, nil
}

// newLogger returns controller-runtime's logger without its sampling, which would
// keep only the first hundred equal messages of a second. Every decision counts. It adds no
// stack to errors: most are mistakes of others, such as a collector that is down, and a
// panic's line has its stack.
func (f *flags) newLogger() *zap.Logger {
	var all zapcore.Core
	options := f.log
	if options.StacktraceLevel == nil {
		options.StacktraceLevel = zapcore.PanicLevel
	}
	options.ZapOpts = []zap.Option{zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		all = core
		return core
	})}
	sampling := ctrlzap.NewRaw(ctrlzap.UseFlagOptions(&options))
	return sampling.WithOptions(zap.WrapCore(func(zapcore.Core) zapcore.Core { return all }))
}

// EnvPrefix is the prefix of the environment variables that set flags.
const EnvPrefix = "ADMITKIT_"

// variableOf returns the environment variable of a flag.
func variableOf(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ofService are variables that a kubelet sets in each Pod of a namespace with a
// Service named admitkit, unless enableServiceLinks is false. These two look like
// flags.
var ofService = []string{EnvPrefix + "PORT", EnvPrefix + "SERVICE_PORT"}

// readEnvironment sets the flags that were not given but have a variable.
func readEnvironment(set *pflag.FlagSet) error {
	_, linked := os.LookupEnv(EnvPrefix + "SERVICE_HOST")
	var errs []error
	set.VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value, given := os.LookupEnv(name)
		if !given || f.Changed || f.Name == "help" || f.Name == "version" || linked && slices.Contains(ofService, name) {
			return
		}
		if err := set.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}
