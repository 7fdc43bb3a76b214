// Package manager runs extensions: it generates certificates, registers webhook
// configurations, serves admissions, and runs watchers and reconcilers, from the
// start to a drained stop.
//
//	mgr, err := manager.New(manager.Options{
//		Namespaces:       []string{"apps"}, // whose Pods
//		WebhookNamespace: "my-system",      // where we are
//		ServiceName:      "my-ext",         // and how the API server reaches us
//	})
//	err = mgr.AddExtension(myExtension)
//	err = mgr.Start(ctrl.SetupSignalHandler())
//
// # One process or two
//
// [Manager.Start] registers and serves. To keep the right to write webhook
// configurations away from the process that serves, run two: one calls
// [Manager.RegisterExtensions] and ends, the other sets RegisterWebHook to false and
// calls Start. Give both the same options and the same extensions in the same order,
// because names and paths follow from these. docs/security.md lists the rights of
// each.
//
// # Failure
//
// New reports invalid options. Start reports what the API server rejects before it
// registers anything: registration comes last, when the server listens. A stop goes
// the other way round; see ServingOptions.
//
// # Reading the code
//
// start.go is the way through. It makes a serving, whose upkeep
// (upkeep.go) keeps the registration (registration.go) and the certificates
// (certificates.go) right. registrar.go runs the upkeep alone. reconcile.go and
// watch.go run what does not answer admissions, on the controller-runtime manager of
// kube.go, once the gate of conversiongate.go is open. manifests.go and unregister.go are
// for the time before and after.
//
// The parts that need no Manager are in the folder internal: apiserver has the clients and the
// clock, health the health checks and the probe, feed the events for one watcher,
// metricsguard the guard of the metrics, manifests the manifests of an installation,
// scaledown the end of its Pods.
package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/cachesync"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/internal/webhookpath"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/health"
	"github.com/admitkit/admitkit/webhook"
)

// Manager runs extensions. Make one with [New], add extensions, and start it once.
type Manager struct {
	options    Options
	httpClient *http.Client
	clients    apiserver.Clients

	// parts is what was added, problem why some of it could not be added.
	parts   host.Parts
	problem error

	ready  chan struct{}
	prober health.Prober
	// superseded is why this installation is not called any more, nil if it is.
	superseded atomic.Pointer[error]
	repairs    registration.RepairsTold
	clock      *apiserver.Clock
	// caches knows of the manager's cache, and of what watchers see, what is missing.
	caches *cachesync.Status
	modes  modeState
	// exemptions are those of the options and of exemptionsFile.
	exemptions     *webhook.Exemptions
	exemptionsFile followed
	// gate is what reconcilers and watchers wait for; nil for nothing.
	gate *conversionGate
	// compare returns what handles the admissions that a candidate is sent; nil in a manager
	// that answers itself.
	compare func([]*webhook.Webhook, webhook.HandlerOptions) (http.Handler, error)

	mu      sync.Mutex
	started bool
	stopped bool
	ctx     context.Context
	cancel  context.CancelFunc
	kube    ctrlmanager.Manager
	source  certs.Source
}

var _ extension.Manager = (*Manager)(nil)

// New validates the options and returns a Manager. It does not call the API server.
func New(options Options) (*Manager, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("manager options: %w", err)
	}
	server := apiserver.NewClock(clock.RealClock{})
	options.RESTConfig.Wrap(server.Wrap)
	options.RESTConfig.Wrap(webhookpath.Redacting)
	httpClient, err := rest.HTTPClientFor(options.RESTConfig)
	if err != nil {
		return nil, fmt.Errorf("manager options: RESTConfig: %w", err)
	}
	clients, err := apiserver.NewClients(options.RESTConfig, httpClient)
	if err != nil {
		return nil, fmt.Errorf("manager options: RESTConfig: %w", err)
	}
	return &Manager{
		options: options, httpClient: httpClient, clients: clients,
		ready: make(chan struct{}), ctx: options.Context, clock: server,
		caches: cachesync.New(options.Scheme, zapr.NewLogger(options.Logger.Desugar())),
		modes:  modeState{file: followed{option: "Registration.ModesFile", path: options.Registration.ModesFile, about: "modes"}},

		exemptions:     webhook.NewExemptions(server),
		exemptionsFile: followed{option: "Serving.ExemptionsFile", path: options.Serving.ExemptionsFile, about: "exemptions"},
	}, nil
}

// GetContext returns the context of the run; see extension.Manager.
func (m *Manager) GetContext() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ctx
}

// GetKubeManager returns the controller-runtime manager, nil before the start.
func (m *Manager) GetKubeManager() ctrlmanager.Manager {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kube
}

// GetKubeConnection returns a copy of the connection's configuration. The error is
// always nil; it is there because EiriniX has it.
func (m *Manager) GetKubeConnection() (*rest.Config, error) {
	return rest.CopyConfig(m.options.RESTConfig), nil
}

// GetKubeClient returns an uncached client. The error is always nil; it is there
// because EiriniX has it.
func (m *Manager) GetKubeClient() (corev1client.CoreV1Interface, error) {
	return m.clients.Core, nil
}

// GetLogger returns the manager's logger.
func (m *Manager) GetLogger() *zap.SugaredLogger { return m.options.Logger }

// GetNamespaces returns the watched namespaces, none for all.
func (m *Manager) GetNamespaces() []string { return slices.Clone(m.options.Namespaces) }

// GetWebhookNamespace returns the manager's own namespace.
func (m *Manager) GetWebhookNamespace() string { return m.options.WebhookNamespace }

// GetExcludedNamespaces returns the namespaces that the manager's webhooks do not receive.
func (m *Manager) GetExcludedNamespaces() []string {
	return slices.Clone(m.options.Registration.ExcludeNamespaces)
}

// GetFingerprint returns the fingerprint of the installation.
func (m *Manager) GetFingerprint() string { return m.options.OperatorFingerprint }

// GetReconcilerUser returns the user as which the reconcilers write, if they run in
// another process; see extension.Manager.
func (m *Manager) GetReconcilerUser() string { return m.options.Watching.ReconcilerUser }

// GetClock returns the clock of the API server; see extension.Manager.
func (m *Manager) GetClock() clock.PassiveClock { return m.clock }

// PatchFromPod returns the response that turns the Pod of the request into pod.
func (m *Manager) PatchFromPod(req admission.Request, pod *corev1.Pod) admission.Response {
	return webhook.PatchFrom(req, pod)
}

// errStarted is the error of a second start.
var errStarted = errors.New("the manager was started before and runs only once; make a new one")

// begin marks the manager as started and returns the context of the run, which
// ends with ctx, with Options.Context and by Stop.
func (m *Manager) begin(ctx context.Context) (context.Context, error) {
	if err := m.added(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		return nil, errStarted
	}
	m.started = true
	m.gate = m.newConversionGate()
	run, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(m.options.Context, cancel)
	m.cancel = func() { stop(); cancel() }
	if m.stopped {
		m.cancel()
	}
	return run, nil
}

// Ready returns a channel that is closed when the webhooks are served and, if this
// process registers them, registered.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Stop stops a running manager; Start returns when the drain is over. A manager that
// has not started yet stops as soon as it starts. Stop may be called more than once.
func (m *Manager) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	if m.cancel != nil {
		m.cancel()
	}
}

// event writes an Event about the CA's Secret. Failing, for lack of the right for example,
// is not an error.
func (m *Manager) event(reason, message string) { m.eventOf(corev1.EventTypeNormal, reason, message) }

// warning writes an Event about something that somebody has to mend.
func (m *Manager) warning(reason, message string) {
	m.eventOf(corev1.EventTypeWarning, reason, message)
}

func (m *Manager) eventOf(eventType, reason, message string) {
	namespace := m.options.WebhookNamespace
	if err := apiserver.Event(m.GetContext(), m.clients.Core.Events(namespace), namespace, m.options.SetupCertificateName, eventType, reason, message); err != nil {
		m.options.Logger.Debugw("Event not written", "reason", reason, "message", message, "error", err)
	}
}
