package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/admitkit/admitkit/certs"
)

// Defaults of Options.
const (
	DefaultFingerprint = "admitkit"
	DefaultPort        = 9443
	DefaultServicePort = 443
	DefaultDrainPeriod = 10 * time.Second
	// DefaultWatcherQueueLength is that of each watcher.
	DefaultWatcherQueueLength = 1000
	// DefaultClusterDomain is that of most clusters.
	DefaultClusterDomain = "cluster.local"
)

// Options say what a Manager does. Namespace or WebhookNamespace must be given,
// and one of ServiceName, AdvertiseHost and Host if an extension is to answer
// admissions.
type Options struct {
	// Namespace is the namespace whose objects reach the extensions and
	// watchers. Default: every namespace.
	Namespace string

	// PodSelector narrows the Pods down further, for watchers and for every
	// scope on Pods that has no ObjectSelector of its own. Default: all.
	PodSelector *metav1.LabelSelector

	// WebhookNamespace is where the manager itself is at home: the namespace of
	// its Service, its Secret and its Lease. Default: Namespace.
	WebhookNamespace string

	// ServiceName is the Service by which the API server reaches the webhooks.
	// Without it the API server is given a URL.
	ServiceName string
	// ServicePort is the port of that Service. Default: 443.
	ServicePort int32

	// ClusterDomain is that of the cluster, a further name of the Service.
	// Default: cluster.local.
	ClusterDomain string

	// AdvertiseHost is the DNS name or address in the URL, for a manager that
	// runs outside the cluster; with a ServiceName it is a further name in the
	// certificate. Default: Host.
	AdvertiseHost string

	// Host is the address to listen on. Default: every address.
	Host string
	// Port is the port to listen on. Default: 9443.
	Port int32

	// Context is the parent of every run: when it ends, the manager stops.
	// Default: context.Background().
	Context context.Context

	// KubeConfig is the path of a kubeconfig file. Default: RESTConfig, then
	// the file of the environment variable KUBECONFIG, then ~/.kube/config,
	// then the Pod's service account.
	KubeConfig string
	// RESTConfig is a connection that is already configured.
	RESTConfig *rest.Config

	// Scheme maps the kinds that reconcilers and handlers use to Go types.
	// Default: client-go's scheme, with every built-in kind.
	Scheme *runtime.Scheme

	// Logger gets everything the manager and its extensions log, audit records
	// included, so it should not sample, as zap's presets do. Default: JSON
	// lines at info on standard error, every one of them.
	Logger *zap.SugaredLogger

	// FailurePolicy is that of every scope that sets none: what the API server
	// does with an object while the webhook fails. Default: Fail.
	FailurePolicy *admissionregistrationv1.FailurePolicyType

	// OperatorFingerprint tells apart the installations in one namespace: it is
	// part of the names of the webhook configurations, of the Secret and of the
	// Lease. A DNS label. Default: admitkit.
	OperatorFingerprint string

	// RegisterWebHook says whether Start registers the webhooks. Set it to
	// false where another process calls RegisterExtensions. Default: true.
	RegisterWebHook *bool

	// IgnoreUntilProbed registers every webhook with failure policy Ignore until
	// a request through the API server has come back through one of them. From
	// then on the failure policy is in force, for good. Default: false.
	IgnoreUntilProbed bool
	// NoProbe leaves that request out, and with it the right to create ConfigMaps
	// in WebhookNamespace (it is a dry run: none is created). Readiness then
	// does not depend on it. Default: false.
	NoProbe bool

	// AllowOwnPods names webhooks that may match the manager's own Pods although
	// their failure policy is Fail. Default: Start refuses them, when the manager
	// is behind a Service in a namespace that they cover, since once the last
	// replica is gone no Pod of it could be created any more. A scope whose
	// NamespaceSelector names the namespace is taken at its word.
	AllowOwnPods []string

	// WebhookAnnotations are put on the webhook configurations, for example
	// cert-manager.io/inject-ca-from. Default: none.
	WebhookAnnotations map[string]string
	// ForeignCABundle leaves the caBundle of the webhook configurations to
	// someone else, such as cert-manager's injector. It needs a certificate from
	// CertificateDir or LeafSecretName. Default: false.
	ForeignCABundle bool
	// WebhookOwner is a cluster-scoped object with which the webhook
	// configurations are deleted, such as the Namespace of the installation.
	// Default: none.
	WebhookOwner *metav1.OwnerReference

	// UnregisterOnStop removes the webhook configurations when Start ends, before
	// the drain, so that a failure policy Fail blocks nobody afterwards. For a
	// manager without replicas that comes and goes, on a developer's machine for
	// example. Default: false, since a restart must leave no gap.
	UnregisterOnStop bool

	// SetupCertificate says whether the manager creates the CA Secret, and
	// repairs it when it is malformed or expired. If false, the manager waits
	// for the Secret. Default: as RegisterWebHook.
	SetupCertificate *bool
	// SetupCertificateName is the name of that Secret. Default:
	// FINGERPRINT-setupcertificate.
	SetupCertificateName string

	// LeafSecretName is a Secret of type kubernetes.io/tls, in WebhookNamespace,
	// with the serving certificate. The registrar alone then has the CA's key,
	// and has to run on (KeepRegistered); servers read nothing but this Secret.
	// With ForeignCABundle it is someone else who writes it. Default: none, each
	// replica reads the CA and signs for itself.
	LeafSecretName string

	// CALifetime and LeafLifetime are the validity of certificates; they are
	// renewed when a third is left. LeafLifetime is at most a third of
	// CALifetime. Default: 1 year and 7 days.
	CALifetime, LeafLifetime time.Duration
	// PropagationDelay is how long every API server has to learn of a new CA
	// before it signs. Default: 1 min.
	PropagationDelay time.Duration
	// OnCertificateChange is called after each change of certificates that this
	// process makes. Default: none.
	OnCertificateChange func(certs.Change)

	// CertificateDir is a folder with tls.crt, tls.key and ca.crt from somebody
	// else, cert-manager for example; there is no Secret then. The files are
	// read again when they change.
	CertificateDir string

	// WatcherStartRV is a resource version: watchers are not told of Pods that
	// were last changed at it or before. Default: they see every Pod.
	WatcherStartRV string

	// WatcherQueueLength is how many events wait for each watcher at most. When
	// it is full, what comes is dropped and counted, and the watcher is told
	// later what came of it. Default: 1000.
	WatcherQueueLength int

	// LeaderElection makes one replica at a time run the reconcilers and
	// watchers, but for watchers that say that each replica should
	// (extension.LeaderElected). Admissions are answered by every replica,
	// always. Default: off.
	LeaderElection bool

	// MaxBodyBytes is the largest body of an admission request that is read; a
	// larger one fails, and the failure policy decides. Default: 8 MiB.
	MaxBodyBytes int64
	// MaxInFlight is how many requests each webhook answers at one time; an API
	// server is told to try one more again in a second. Default: 1024.
	MaxInFlight int
	// TracerProvider gets OpenTelemetry spans of the admission requests, and of
	// each extension in them. Default: no spans.
	TracerProvider trace.TracerProvider

	// HealthAddress serves /healthz and /readyz, for example ":8081". Default:
	// off.
	HealthAddress string
	// MetricsAddress serves /metrics over HTTP, for example ":8080". Default:
	// off.
	MetricsAddress string

	// DrainPeriod is how long a manager that was told to stop stays up, not
	// ready any more but serving, while endpoints and connections move on to
	// other replicas. Then it lets the requests in flight finish. Default: 10 s.
	DrainPeriod *time.Duration
}

// complete checks the options and fills in the defaults. An error names the
// field and says what would be right.
func (o *Options) complete() error {
	if err := errors.Join(
		o.completeNames(),
		o.completeAddresses(),
		o.completePolicies(),
		o.completeCertificates(),
	); err != nil {
		return err
	}
	if o.Context == nil {
		o.Context = context.Background()
	}
	if o.Scheme == nil {
		o.Scheme = clientgoscheme.Scheme
	}
	if o.Logger == nil {
		config := zap.NewProductionConfig()
		config.Sampling = nil
		logger, err := config.Build()
		if err != nil {
			return fmt.Errorf("Logger: %w", err)
		}
		o.Logger = logger.Sugar()
	}
	return o.completeConnection()
}

func (o *Options) completeNames() error {
	o.OperatorFingerprint = cmp.Or(o.OperatorFingerprint, DefaultFingerprint)
	o.WebhookNamespace = cmp.Or(o.WebhookNamespace, o.Namespace)
	o.SetupCertificateName = cmp.Or(o.SetupCertificateName, o.OperatorFingerprint+"-setupcertificate")
	if o.WebhookNamespace == "" {
		return errors.New("WebhookNamespace: required when Namespace is empty: the namespace that the manager is at home in")
	}
	return errors.Join(
		check("Namespace", o.Namespace, validation.IsDNS1123Label),
		check("WebhookNamespace", o.WebhookNamespace, validation.IsDNS1123Label),
		check("ServiceName", o.ServiceName, validation.IsDNS1035Label),
		check("OperatorFingerprint", o.OperatorFingerprint, validation.IsDNS1123Label),
		check("LeafSecretName", o.LeafSecretName, validation.IsDNS1123Subdomain),
		check("ClusterDomain", o.ClusterDomain, validation.IsDNS1123Subdomain),
		check("SetupCertificateName", o.SetupCertificateName, validation.IsDNS1123Subdomain),
	)
}

func (o *Options) completeAddresses() error {
	if o.ServiceName == "" && o.ServicePort != 0 {
		return errors.New("ServicePort: set without a ServiceName")
	}
	o.ClusterDomain = cmp.Or(o.ClusterDomain, DefaultClusterDomain)
	o.Port = cmp.Or(o.Port, DefaultPort)
	o.ServicePort = cmp.Or(o.ServicePort, DefaultServicePort)
	for _, port := range []struct {
		field string
		value int32
	}{{"Port", o.Port}, {"ServicePort", o.ServicePort}} {
		if problems := validation.IsValidPortNum(int(port.value)); len(problems) > 0 {
			return fmt.Errorf("%s: %d: %s", port.field, port.value, strings.Join(problems, ", "))
		}
	}
	if o.ServiceName == "" && o.AdvertiseHost == "" {
		if ip := net.ParseIP(o.Host); ip == nil || !ip.IsUnspecified() {
			o.AdvertiseHost = o.Host
		}
	}
	return nil
}

// callable says what is missing for the API server to call us. Only an
// extension that answers admissions needs it.
func (o *Options) callable() error {
	if o.ServiceName == "" && o.AdvertiseHost == "" {
		return errors.New("manager options: AdvertiseHost: required without a ServiceName, unless Host is one address: the API server must know whom to call")
	}
	return nil
}

func (o *Options) completePolicies() error {
	o.RegisterWebHook = ptrOr(o.RegisterWebHook, true)
	o.DrainPeriod = ptrOr(o.DrainPeriod, DefaultDrainPeriod)
	o.FailurePolicy = ptrOr(o.FailurePolicy, admissionregistrationv1.Fail)
	if *o.FailurePolicy != admissionregistrationv1.Fail && *o.FailurePolicy != admissionregistrationv1.Ignore {
		return fmt.Errorf("FailurePolicy: %q: must be %s or %s", *o.FailurePolicy, admissionregistrationv1.Fail, admissionregistrationv1.Ignore)
	}
	if o.UnregisterOnStop && !*o.RegisterWebHook {
		return errors.New("UnregisterOnStop: set while RegisterWebHook is false: the registrar unregisters")
	}
	if o.MaxBodyBytes < 0 {
		return fmt.Errorf("MaxBodyBytes: %d: must not be negative", o.MaxBodyBytes)
	}
	if o.MaxInFlight < 0 {
		return fmt.Errorf("MaxInFlight: %d: must not be negative", o.MaxInFlight)
	}
	if o.WatcherQueueLength < 0 {
		return fmt.Errorf("WatcherQueueLength: %d: must not be negative", o.WatcherQueueLength)
	}
	o.WatcherQueueLength = cmp.Or(o.WatcherQueueLength, DefaultWatcherQueueLength)
	if *o.DrainPeriod < 0 {
		return fmt.Errorf("DrainPeriod: %s: must not be negative", *o.DrainPeriod)
	}
	if o.CertificateDir != "" && o.SetupCertificate != nil && *o.SetupCertificate {
		return errors.New("SetupCertificate and CertificateDir: the manager either makes the certificates or is given them")
	}
	o.SetupCertificate = ptrOr(o.SetupCertificate, *o.RegisterWebHook)
	if o.WatcherStartRV != "" {
		if _, err := strconv.ParseUint(o.WatcherStartRV, 10, 64); err != nil {
			return fmt.Errorf("WatcherStartRV: %q: must be a resource version, a number", o.WatcherStartRV)
		}
	}
	if _, err := metav1.LabelSelectorAsSelector(o.PodSelector); err != nil {
		return fmt.Errorf("PodSelector: %w", err)
	}
	return nil
}

func (o *Options) completeCertificates() error {
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"CALifetime", o.CALifetime}, {"LeafLifetime", o.LeafLifetime}, {"PropagationDelay", o.PropagationDelay}} {
		if d.value < 0 {
			return fmt.Errorf("%s: %s: must not be negative", d.field, d.value)
		}
	}
	o.CALifetime = cmp.Or(o.CALifetime, certs.DefaultCALifetime)
	o.LeafLifetime = cmp.Or(o.LeafLifetime, certs.DefaultLeafLifetime)
	o.PropagationDelay = cmp.Or(o.PropagationDelay, certs.DefaultPropagationDelay)
	switch {
	case o.LeafLifetime > o.CALifetime/3:
		return fmt.Errorf("LeafLifetime: %s: must be at most a third of the CALifetime %s, so that a leaf ends before its CA", o.LeafLifetime, o.CALifetime)
	case o.PropagationDelay > o.CALifetime/6:
		return fmt.Errorf("PropagationDelay: %s: must be at most a sixth of the CALifetime %s, so that a rotation ends before the CA", o.PropagationDelay, o.CALifetime)
	case o.CertificateDir != "" && o.LeafSecretName != "":
		return errors.New("CertificateDir and LeafSecretName: the certificate comes from one of the two")
	case o.LeafSecretName != "" && o.LeafSecretName == o.SetupCertificateName:
		return errors.New("LeafSecretName: must differ from SetupCertificateName, which holds the CA's key")
	case o.ForeignCABundle && o.CertificateDir == "" && o.LeafSecretName == "":
		return errors.New("ForeignCABundle: needs a certificate from the same source, by CertificateDir or LeafSecretName")
	case o.IgnoreUntilProbed && o.NoProbe:
		return errors.New("IgnoreUntilProbed and NoProbe: without a probe it would be Ignore for ever")
	case o.WebhookOwner != nil && (o.WebhookOwner.APIVersion == "" || o.WebhookOwner.Kind == "" || o.WebhookOwner.Name == "" || o.WebhookOwner.UID == ""):
		return errors.New("WebhookOwner: needs an API version, a kind, a name and a UID")
	}
	return nil
}

// completeConnection sets RESTConfig, whichever way the connection was given.
func (o *Options) completeConnection() error {
	switch {
	case o.RESTConfig != nil && o.KubeConfig != "":
		return errors.New("KubeConfig and RESTConfig: one connection only")
	case o.RESTConfig != nil:
		o.RESTConfig = rest.CopyConfig(o.RESTConfig)
	default:
		if o.KubeConfig != "" {
			if _, err := os.Stat(o.KubeConfig); err != nil {
				return fmt.Errorf("KubeConfig: %w", err)
			}
		}
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = o.KubeConfig
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		if err != nil {
			return fmt.Errorf("KubeConfig: no connection to a cluster: %w", err)
		}
		o.RESTConfig = config
	}
	if o.RESTConfig.QPS == 0 {
		// No limit of our own: the API server has a fairer one (API Priority
		// and Fairness), and client-go's default of 5 per second would delay
		// a start.
		o.RESTConfig.QPS = -1
	}
	if o.RESTConfig.UserAgent == "" {
		o.RESTConfig.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + o.OperatorFingerprint
	}
	return nil
}

// hosts are the names under which the API server may call.
func (o *Options) hosts() []string {
	var hosts []string
	if o.ServiceName != "" {
		service := o.ServiceName + "." + o.WebhookNamespace
		hosts = []string{o.ServiceName, service, service + ".svc", service + ".svc." + o.ClusterDomain}
	}
	if o.AdvertiseHost != "" {
		hosts = append(hosts, o.AdvertiseHost)
	}
	return hosts
}

// calledAs is the name under which the API server does call.
func (o *Options) calledAs() string {
	if o.ServiceName != "" {
		return o.ServiceName + "." + o.WebhookNamespace + ".svc"
	}
	return o.AdvertiseHost
}

// configurationName names the webhook configurations. A DNS label has no dot,
// so two installations cannot come to the same name.
func (o *Options) configurationName() string {
	return o.OperatorFingerprint + "." + o.WebhookNamespace
}

func check(field, value string, valid func(string) []string) error {
	if value == "" {
		return nil
	}
	if problems := valid(value); len(problems) > 0 {
		return fmt.Errorf("%s: %q: %s", field, value, strings.Join(problems, ", "))
	}
	return nil
}

func ptrOr[T any](value *T, otherwise T) *T {
	if value == nil {
		return &otherwise
	}
	return value
}
