// Package broker gives runs that nobody trusts, and the seeds of Workspaces, the credentials that a BrokerPolicy grants
// them, on lease: each is on record before it exists, is revoked when its run has ended, and
// what cannot be revoked at once stays in a queue until it is, or until it has ended by
// itself. It is a process of its own, with the only rights on the Secrets.
//
//	err := mgr.AddExtension(broker.New(broker.Options{CertFile: ..., KeyFile: ...}))
//
// # How a credential is given
//
//   - authenticate (authenticate.go) asks the API server whose token it is: that of a
//     run's Pod, or that of the controller.
//   - issue (issue.go) finds the grant, claims a lease (claim.go), has the Recorder of the
//     manager keep that, has the provider (provider.go) make the credential, and answers.
//     What fails in between is revoked.
//
// # How it is revoked
//
// A CredentialLease, in the broker's own namespace, is deleted: by a call of the
// controller, by anybody with kubectl, or by the reconciler (reconciler.go) when the run
// has ended or is gone, or when its time is over. Its finalizer keeps it until the provider
// has revoked the credential. So the queue is the list of leases, and survives everything
// that etcd survives.
//
// Add an [extension.Recorder] that fails closed to the same manager, such as operator/audit
// with a sink that is Closed: while it cannot keep records, the broker issues nothing. With
// none there are no records.
package broker

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// Options are the options of New.
type Options struct {
	// Address is where the broker listens. Default: :8443.
	Address string
	// CertFile and KeyFile have the certificate of the broker, in PEM, and are read again when
	// they change. Default: one of its own, whose authority it keeps in its Secret, and writes
	// into its ConfigMap, sandbox-broker-ca.
	CertFile, KeyFile string
	// ServingNames are the DNS names in the broker's own certificate. Default: those of the
	// Service sandbox-broker in its namespace.
	ServingNames []string
	// Controllers are the users that may act for any run, such as
	// system:serviceaccount:admitkit-system:sandbox. Default: none.
	Controllers []string
	// Namespaces are those of runs. Default: the watched namespaces, or every one if there is
	// none.
	Namespaces []string
	// SourceConnections is how many connections one address can have, and how many new ones a
	// second. Set more where Pods reach the broker from the address of their node. Default: 32;
	// from 1 to 1024.
	SourceConnections int
	// LeaseDuration is how long the proxy of a run may use a credential that cannot be revoked
	// at its source before it asks again. Default: 5 m; from 30 s to 1 h.
	LeaseDuration time.Duration
	// GitHubURL is the URL of GitHub's API. Default: https://api.github.com.
	GitHubURL string
	// GitHubTransport calls it. Default: http.DefaultTransport.
	GitHubTransport http.RoundTripper
	// Clock tells the time. Default: the API server's.
	Clock clock.PassiveClock
}

// Defaults of Options.
const (
	DefaultAddress           = ":8443"
	DefaultSourceConnections = 32
	DefaultLeaseDuration     = 5 * time.Minute
	DefaultGitHubURL         = "https://api.github.com"
)

// Broker is the extension. Make one with [New].
type Broker struct{ options Options }

// service is what answers and what reconciles.
type service struct {
	options   Options
	namespace string // the broker's own, where leases are

	log       *zap.Logger
	recorder  extension.Recorder
	clock     clock.PassiveClock
	cached    client.Reader
	live      client.Client
	runs      runs
	providers map[v1alpha1.CredentialProvider]provider
	limits    *limits
	retries   retries
}

// New returns the extension.
func New(options Options) *Broker {
	options.Address = cmp.Or(options.Address, DefaultAddress)
	options.SourceConnections = cmp.Or(options.SourceConnections, DefaultSourceConnections)
	options.LeaseDuration = cmp.Or(options.LeaseDuration, DefaultLeaseDuration)
	options.GitHubURL = strings.TrimSuffix(cmp.Or(options.GitHubURL, DefaultGitHubURL), "/")
	return &Broker{options: options}
}

var _ extension.Composite = (*Broker)(nil)

// Parts implements [extension.Composite].
func (b *Broker) Parts(mgr extension.Manager) ([]any, error) {
	if err := b.options.check(); err != nil {
		return nil, fmt.Errorf("broker options: %w", err)
	}
	return []any{&leases{&service{options: b.options, namespace: mgr.GetWebhookNamespace()}}}, nil
}

func (o *Options) check() error {
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("CertFile and KeyFile: set both, or neither for a certificate of the broker's own")
	case o.CertFile != "" && len(o.ServingNames) > 0:
		return errors.New("ServingNames: they are for a certificate of the broker's own: leave them out, or CertFile and KeyFile")
	case o.SourceConnections < 1 || o.SourceConnections > maxConnections:
		return fmt.Errorf("SourceConnections: %d is not from 1 to %d", o.SourceConnections, maxConnections)
	case o.LeaseDuration < 30*time.Second || o.LeaseDuration > time.Hour:
		return fmt.Errorf("LeaseDuration: %s is not from 30s to 1h", o.LeaseDuration)
	case !strings.HasPrefix(o.GitHubURL, "https://"):
		return fmt.Errorf("GitHubURL: %q must begin with https://", o.GitHubURL)
	}
	for i, user := range o.Controllers {
		if user == "" || strings.ContainsAny(user, "* ") {
			return fmt.Errorf("Controllers[%d]: %q is not the name of one user, such as system:serviceaccount:admitkit-system:sandbox", i, user)
		}
	}
	return nil
}

// connect connects to the cluster. The cache holds policies, leases, and of runs what tells
// whether they have ended; everything else is read from the API server when it is needed.
func (b *service) connect(mgr extension.Manager) (cache.Cache, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	namespaces := b.options.Namespaces
	if len(namespaces) == 0 {
		namespaces = mgr.GetNamespaces()
	}
	own, err := cluster.New(mgr, cluster.Options{Name: "broker", Scheme: scheme, Namespaces: namespaces, ByObject: map[client.Object]cache.ByObject{
		&v1alpha1.CredentialLease{}:       {Namespaces: map[string]cache.Config{b.namespace: {}}},
		newRun(v1alpha1.LeaseOfRun):       {Transform: trimRun},
		newRun(v1alpha1.LeaseOfWorkspace): {Transform: trimRun},
	}})
	if err != nil {
		return nil, err
	}
	if b.live, err = cluster.NewClient(mgr, scheme); err != nil {
		return nil, err
	}
	b.cached, b.recorder, b.log, b.clock = own.GetCache(), mgr.GetRecorder(), mgr.GetLogger().Desugar().Named("broker"), b.options.Clock
	if b.clock == nil {
		b.clock = mgr.GetClock()
	}
	b.runs, b.limits, b.retries = runs{b.live}, newLimits(b.clock), newRetries()
	b.providers = map[v1alpha1.CredentialProvider]provider{
		v1alpha1.ProviderSecret:    &secretProvider{b.live, b.options.LeaseDuration},
		v1alpha1.ProviderTokenPool: &poolProvider{b.live, b.runs, b.options.LeaseDuration},
		v1alpha1.ProviderGitHubApp: newGitHub(b.live, &b.options, b.clock),
	}
	return own.GetCache(), nil
}

var (
	_ extension.Entitled          = (*leases)(nil)
	_ extension.NamespaceEntitled = (*leases)(nil)
	_ extension.ClusterEntitled   = (*leases)(nil)
)

// Rights implements [extension.Entitled]: what the broker reads where runs are.
func (l *leases) Rights() []rbacv1.PolicyRule {
	if len(l.options.Namespaces) > 0 {
		return nil
	}
	return rightsOnRuns()
}

// NamespaceRights implements [extension.NamespaceEntitled].
func (l *leases) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rights := map[string][]rbacv1.PolicyRule{l.namespace: {
		rule(v1alpha1.GroupVersion.Group, "credentialleases", "get", "list", "watch", "create", "update", "patch", "delete"),
		rule(v1alpha1.GroupVersion.Group, "credentialleases/status", "patch"),
		rule(corev1.GroupName, "secrets", "get", "create", "delete"),
	}}
	if l.options.CertFile == "" {
		secret, config := rule(corev1.GroupName, "secrets", "update"), rule(corev1.GroupName, "configmaps", "get", "update")
		secret.ResourceNames, config.ResourceNames = []string{protocol.CAName}, []string{protocol.CAName}
		rights[l.namespace] = append(rights[l.namespace], secret, config, rule(corev1.GroupName, "configmaps", "create"))
	}
	for _, namespace := range l.options.Namespaces {
		rights[namespace] = append(rights[namespace], rightsOnRuns()...)
	}
	return rights
}

// ClusterRights implements [extension.ClusterEntitled]: to ask whose a token is.
func (*leases) ClusterRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{rule("authentication.k8s.io", "tokenreviews", "create")}
}

func rightsOnRuns() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(v1alpha1.GroupVersion.Group, "sandboxruns", "get", "list", "watch"),
		rule(v1alpha1.GroupVersion.Group, "workspaces", "get", "list", "watch"),
		rule(v1alpha1.GroupVersion.Group, "brokerpolicies", "get", "list", "watch"),
		rule(corev1.GroupName, "secrets", "get"),
		rule(corev1.GroupName, "pods", "get", "list"),
		rule(batchv1.GroupName, "jobs", "get"),
	}
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}
