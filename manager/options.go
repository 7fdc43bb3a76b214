package manager

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
)

// Defaults of Options.
const (
	DefaultPort        = 9443
	DefaultServicePort = 443
	DefaultDrainPeriod = 10 * time.Second
	// DefaultWatcherQueueLength is the queue length of each watcher.
	DefaultWatcherQueueLength = 1000
	// DefaultClusterDomain is the domain of most clusters.
	DefaultClusterDomain = "cluster.local"
)

// FreePort is the Port of a manager that takes any port that is free.
const FreePort = -1

// Options configure a Manager. Namespaces or WebhookNamespace is required. If an
// extension answers admissions, so is one of ServiceName, Serving.AdvertiseHost and
// Host.
//
// The fields here are those of EiriniX's ManagerOptions, with Namespaces in place of its
// Namespace, PodSelector in place of its Cloud Foundry filter, and the connection. All
// others are in groups.
type Options struct {
	// Namespaces are the watched namespaces: those whose objects the extensions, watchers
	// and reconcilers receive. Default: every namespace.
	Namespaces []string

	// PodSelector restricts the Pods further, for watchers and for every scope on
	// Pods without an ObjectSelector of its own. Default: all.
	PodSelector *metav1.LabelSelector

	// WebhookNamespace is the manager's own namespace: the one of its Service, its
	// Secret and its Lease. Default: the watched namespace, if there is exactly one.
	WebhookNamespace string

	// ServiceName is the Service through which the API server calls the webhooks.
	// Without it the API server calls a URL; see Serving.AdvertiseHost.
	ServiceName string

	// Host is the address to listen on. Default: every address.
	Host string
	// Port is the port to listen on. With [FreePort] (--port 0) each Start takes a port
	// that is free, which GetManagerOptions returns once the manager is ready. The port is
	// then part of the webhooks' URL, so there must be no ServiceName, and
	// Registration.UnregisterOnStop must be set: for the next start, which has another
	// port, these would be the webhooks of another installation. Default: 9443.
	Port int32

	// Context is the parent of every run: when it ends, the manager stops.
	// Default: context.Background().
	//
	// Deprecated: pass the context to Start. The field is here for programs that
	// come from EiriniX.
	Context context.Context

	// KubeConfig is the path of a kubeconfig file. Default: RESTConfig, then the
	// file of the environment variable KUBECONFIG, then ~/.kube/config, then the
	// Pod's service account.
	KubeConfig string
	// RESTConfig is a connection that is already configured.
	RESTConfig *rest.Config

	// Scheme maps the kinds that reconcilers and handlers use to Go types.
	// Default: client-go's scheme, with every built-in kind.
	Scheme *runtime.Scheme

	// Logger logs for the manager and its extensions, audit records included. It
	// should therefore not sample, as zap's presets do. Default: JSON lines at
	// level info on standard error, without sampling.
	Logger *zap.SugaredLogger

	// FailurePolicy is the failure policy of every scope that sets none: what the
	// API server does with an object while the webhook fails. Default: Fail.
	FailurePolicy *admissionregistrationv1.FailurePolicyType

	// OperatorFingerprint distinguishes the installations that have one
	// WebhookNamespace, and the programs on one host. It is part of the names of the
	// webhook configurations, the Secret and the Lease, and must be a DNS label.
	// Default: ServiceName; required without one.
	OperatorFingerprint string

	// RegisterWebHook makes Start register the webhooks. Set it to false if
	// another process calls RegisterExtensions. Default: true.
	RegisterWebHook *bool

	// SetupCertificate makes the manager create the CA Secret, and repair it when
	// it is malformed or expired. If it is false, the manager waits for the
	// Secret. Default: the same as RegisterWebHook.
	SetupCertificate *bool
	// SetupCertificateName is the name of the CA Secret. Default:
	// FINGERPRINT-setupcertificate.
	SetupCertificateName string

	// WatcherStartRV is a resource version. Watchers do not see Pods that last
	// changed at this version or before. Default: they see every Pod.
	WatcherStartRV string

	// Serving configures the servers: webhooks, health checks and metrics.
	Serving ServingOptions
	// Registration configures the webhook configurations and the probe.
	Registration RegistrationOptions
	// Certificates configures the serving certificates.
	Certificates CertificateOptions
	// Watching configures watchers and leader election.
	Watching WatchingOptions
}

// ServingOptions configure the servers.
type ServingOptions struct {
	// AdvertiseHost is the DNS name or address in the webhooks' URL, for a manager
	// outside the cluster. With a ServiceName it is another name in the
	// certificate. Default: Host.
	AdvertiseHost string
	// ServicePort is the port of the Service. Without one it is ignored. Default: 443.
	ServicePort int32
	// ClusterDomain is the DNS domain of the cluster, which is part of one of the
	// Service's names. Default: cluster.local.
	ClusterDomain string

	// MaxBodyBytes is the size of the largest admission request that is read. A
	// larger one fails, and the failure policy decides; in a webhook with an
	// extension.Witness it is denied. Default: 8 MiB.
	MaxBodyBytes int64
	// MaxInFlight is how many requests each webhook handles at a time. An API
	// server that sends one more is asked to try again in a second. Default: 1024.
	MaxInFlight int
	// MaxMemoryBytes is what the requests of all webhooks may occupy together, by an
	// estimate. Requests beyond it wait; one that alone takes more than three eighths of
	// it, or whose body takes more than a quarter, fails as a body that is too large
	// does. Default: a third of the process's memory
	// limit (GOMEMLIMIT), 512 MiB without one.
	MaxMemoryBytes int64
	// MaxConnections is how many connections the webhooks have at a time. One more
	// ends the one that has been of least use for longest. If all have requests that are
	// being answered, the new one is closed. Default: 512.
	MaxConnections int
	// TLSMinVersion is the oldest version of TLS that the webhooks accept, 1.2 or 1.3.
	// Default: 1.2.
	TLSMinVersion string
	// TLSCipherSuites are the cipher suites of TLS 1.2, by the names of crypto/tls; insecure
	// ones are refused. TLS 1.3 has no choice. Default: those of crypto/tls.
	TLSCipherSuites []string
	// ClientCAFile has the certificates, in PEM, of those who sign for clients of the
	// webhooks. Only clients with such a certificate may then connect: configure each API
	// server to present one (--admission-control-config-file). It is read again when it
	// changes. Default: none, everybody may connect.
	ClientCAFile string
	// ClientNames are the clients that may connect, by the common name or a DNS name of
	// their certificate. Default: every client with a certificate of ClientCAFile.
	ClientNames []string
	// PlainPaths has the webhooks registered and served at paths that anybody can guess. By
	// default nobody can, so that only who has read a webhook configuration, as API servers
	// do, is answered. A server refuses it without ClientCAFile.
	PlainPaths bool
	// Exemptions let requests pass extensions, each until it ends. Default: none.
	Exemptions []Exemption
	// ExemptionsFile is a YAML file with further ones in its field exemptions. It is read
	// again when it changes. Default: none.
	ExemptionsFile string
	// ChangedBy has objects that an extension changes say so in the annotation
	// admitkit.dev/changed-by: the fingerprint and the version of the program, and the names
	// of the extensions. Default: false.
	ChangedBy bool
	// RecordDir is a folder in which admissions are kept with their answers, for the command
	// replay. It is made if it does not exist. Secrets that can be recognized are replaced; see
	// docs/replay.md for what cannot. Nothing waits for it: what cannot be written in time is
	// dropped and counted. Default: none, nothing is recorded.
	RecordDir string
	// RecordShare is the share of the admissions to record, up to 1. Default: 1, all.
	RecordShare float64
	// RecordLimitBytes is what the recordings in RecordDir may occupy; the oldest are removed.
	// It is at least 1 MiB. An entry of more than an eighth of it is dropped. Default: 1 GiB.
	RecordLimitBytes int64
	// Mirror is the host, or HOST:PORT, of a candidate ([Manager.StartCandidate]): another build
	// of the program in the same installation. It is sent every admission with its answer, as
	// they are, and compares. Nothing waits for it: what it does not take in time is dropped and
	// counted. Not together with RecordDir. Default port: 443. Default: none.
	Mirror string
	// DrainPeriod is how long a manager keeps serving after it was told to stop,
	// while it reports that it is not ready, so that endpoints and connections
	// move on to other replicas. Then it finishes the requests in flight. Default:
	// 10 s.
	DrainPeriod *time.Duration

	// HealthAddress serves /healthz and /readyz, for example ":8081". Default: off. The
	// flag's default is :8081, for a Pod; of several processes on one machine each needs
	// another address, or none: --health-address= turns it off.
	HealthAddress string
	// MetricsAddress serves /metrics, for example ":8080". Default: off. The
	// flag's default is :8080; see HealthAddress.
	MetricsAddress string
	// MetricsSecure serves /metrics over HTTPS, with the webhooks' certificate, and only to
	// those who send the token of a user whom RBAC lets get the path /metrics. The manager
	// then asks the API server by TokenReviews and SubjectAccessReviews, and needs the right
	// to create them. Without MetricsAddress it changes nothing. Default: false, everybody
	// who reaches the port may read.
	MetricsSecure bool
	// TracerProvider receives an OpenTelemetry span for each admission request and
	// for each extension in it. Default: no spans.
	TracerProvider trace.TracerProvider

	// minVersion and cipherSuites are TLSMinVersion and TLSCipherSuites, read.
	minVersion   uint16
	cipherSuites []uint16
}

// RegistrationOptions configure the webhook configurations.
type RegistrationOptions struct {
	// Probe makes the process that registers send one request through the API
	// server, to learn that it comes back through a webhook; readiness depends on
	// that. The request is a dry run that creates a ConfigMap in WebhookNamespace,
	// and needs the right to create one. Default: true.
	Probe *bool
	// IgnoreUntilProbed registers every webhook with failure policy Ignore until
	// the probe has come back. From then on the failure policy is in force, for
	// good. Default: false.
	IgnoreUntilProbed bool

	// AllowOwnPods names webhooks, or all by "*", that may match the manager's own Pods although
	// their failure policy is Fail. Start refuses all others if the manager is
	// behind a Service in a namespace that they cover, because once its last
	// replica is gone, no Pod of it could be created again. A scope whose
	// NamespaceSelector names the namespace is always accepted. Default: none.
	AllowOwnPods []string

	// ExcludeNamespaces are further namespaces that no webhook receives, whatever its
	// failure policy: those of a network plugin, for example, whose Pods must start before
	// the manager can. Only a scope that selects extension.EveryNamespace still does,
	// since no Pod waits for it. A scope that names one of them is an error. All processes
	// of an installation need the same. Default: none; failure policy Fail leaves out the
	// manager's own, kube-system and kube-node-lease anyway.
	ExcludeNamespaces []string

	// Modes set the modes of extensions: whether they deny and change objects, or only tell
	// what they would do. The first rule that is about an extension and a namespace counts,
	// then those of ModesFile, then Scope.Mode. All processes that register or serve need
	// the same. Default: none.
	Modes []ModeRule
	// ModesFile is a YAML file with further rules in its field modes. It is read again when
	// it changes. Default: none.
	ModesFile string

	// Annotations are set on the webhook configurations, for example
	// cert-manager.io/inject-ca-from. Default: none.
	Annotations map[string]string
	// TolerateSelectorTerms are terms that others may add to the namespace selectors of
	// the webhook configurations, as managed Kubernetes does to keep its own namespaces
	// out: KEY=VALUE for namespaces whose label KEY is VALUE, KEY for any value. Whoever
	// sets such a label excludes a namespace from every webhook. Other terms are
	// removed; those that exclude nothing of what a scope selects may always stay.
	// Default: none.
	TolerateSelectorTerms []string
	// ForeignCABundle leaves the caBundle of the webhook configurations to another
	// program, such as cert-manager's injector. It requires Certificates.Dir or
	// Certificates.LeafSecretName. Default: false.
	ForeignCABundle bool
	// Owner is a cluster-scoped object, such as the Namespace of the installation.
	// The webhook configurations are deleted with it. Default: none.
	Owner *metav1.OwnerReference

	// tolerated is TolerateSelectorTerms, read.
	tolerated registration.Tolerated

	// UnregisterOnStop removes the webhook configurations when Start ends, before
	// the drain, so that failure policy Fail blocks nobody afterwards. Use it for
	// a manager without replicas that comes and goes, for example on a developer's
	// machine. The Secrets stay, with the CA and the key of the paths: the next start uses
	// them again, and [Manager.UnregisterExtensions] removes them. Default: false, because
	// a restart must leave no gap.
	UnregisterOnStop bool
}

// CertificateOptions configure the serving certificates.
type CertificateOptions struct {
	// CALifetime and LeafLifetime are the validity of certificates, which are
	// renewed when a third of it is left. LeafLifetime is at most a third of
	// CALifetime. Default: 1 year and 7 days.
	CALifetime, LeafLifetime time.Duration
	// PropagationDelay is how long API servers have to learn of a new CA before it
	// signs. Default: 1 min.
	PropagationDelay time.Duration
	// OnChange is called after each change of certificates that this process
	// makes. Default: none.
	OnChange func(certs.Change)

	// LeafSecretName is a Secret of type kubernetes.io/tls, in WebhookNamespace,
	// that holds the serving certificate. Only the registrar then has the CA's
	// key, and it has to keep running (KeepRegistered); servers read nothing but
	// this Secret. With Registration.ForeignCABundle another program writes it.
	// Default: none, each replica reads the CA and signs for itself.
	LeafSecretName string
	// Dir is a folder with tls.crt, tls.key and ca.crt from another program, such
	// as cert-manager. The manager then uses no Secret. It reads the files again
	// when they change. Default: none.
	Dir string
}

// WatchingOptions configure what does not answer admissions.
type WatchingOptions struct {
	// QueueLength is how many events wait for each watcher at most. While the
	// queue is full, further events are dropped and counted, and the watcher later
	// sees the state that resulted. Default: 1000.
	QueueLength int
	// LeaderElection makes one replica at a time run the reconcilers and watchers,
	// except for watchers that ask to run in each replica
	// (extension.LeaderElected). Every replica always answers admissions. Default:
	// false.
	LeaderElection bool
	// ReconcilerUser is the user as which another process of the installation runs the
	// reconcilers and watchers ([Manager.Reconcile]), such as
	// system:serviceaccount:my-system:my-ext-reconciler. Start then runs only the
	// watchers that ask to run in every replica, and what guards the objects of the
	// reconcilers lets that user write them. Default: none, Start runs them all.
	ReconcilerUser string
}
