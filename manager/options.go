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
)

// Defaults of Options.
const (
	DefaultFingerprint = "admitkit"
	DefaultPort        = 9443
	DefaultServicePort = 443
	DefaultDrainPeriod = 10 * time.Second
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

	// AdvertiseHost is the DNS name or address in the URL, for a manager that
	// runs outside the cluster. Default: Host.
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

	// CertificateDir is a folder with tls.crt, tls.key and ca.crt from somebody
	// else, cert-manager for example; there is no Secret then. The files are
	// read again when they change.
	CertificateDir string

	// WatcherStartRV is a resource version: watchers are not told of Pods that
	// were last changed at it or before. Default: they see every Pod.
	WatcherStartRV string

	// LeaderElection makes one replica at a time run the reconcilers and
	// watchers. Admissions are answered by every replica, always. Default: off.
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
		check("SetupCertificateName", o.SetupCertificateName, validation.IsDNS1123Subdomain),
	)
}

func (o *Options) completeAddresses() error {
	if o.ServiceName == "" && o.ServicePort != 0 {
		return errors.New("ServicePort: set without a ServiceName")
	}
	if o.ServiceName != "" && o.AdvertiseHost != "" {
		return errors.New("AdvertiseHost and ServiceName: the API server can be given one of the two")
	}
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
	if o.ServiceName == "" {
		return []string{o.AdvertiseHost}
	}
	service := o.ServiceName + "." + o.WebhookNamespace
	return []string{o.ServiceName, service, service + ".svc", service + ".svc.cluster.local"}
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
