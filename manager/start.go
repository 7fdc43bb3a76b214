package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/zapr"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/webhook"
	"github.com/admitkit/admitkit/webhook/registration"
)

// Start registers the extensions (unless told not to), serves admissions, and
// runs watchers and reconcilers. It returns when ctx ends, or Stop is called,
// and the drain is over; or with the first error.
func (m *Manager) Start(ctx context.Context) error {
	return m.run(ctx, m.start)
}

// run runs one of the ways to use a manager from its beginning to its end.
func (m *Manager) run(ctx context.Context, do func(context.Context) error) error {
	ctx, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer m.cancel()
	defer m.httpClient.CloseIdleConnections()
	if err := do(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

func (m *Manager) start(ctx context.Context) error {
	webhooks, err := m.webhooks()
	if err != nil {
		return err
	}
	if err := m.reach(ctx); err != nil {
		return err
	}
	health := newHealth()
	kube, err := m.newKubeManager(health)
	if err != nil {
		return err
	}

	// What extensions run in outlives ctx until the last request is answered.
	run, cancelRun := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRun()
	m.mu.Lock()
	m.ctx, m.kube = run, kube
	m.mu.Unlock()

	if err := m.parts.Register(m); err != nil {
		return err
	}
	background, err := m.newBackground(kube, m.parts.Reconcilers)
	if err != nil {
		return err
	}

	group, groupCtx := errgroup.WithContext(ctx)
	var serve func(context.Context) error
	if len(webhooks) > 0 {
		if serve, err = m.newServing(ctx, kube, webhooks); err != nil {
			return err
		}
	}
	if err := m.serveHealth(ctx, run, health, group); err != nil {
		return err
	}
	if serve != nil {
		group.Go(func() error {
			defer cancelRun()
			return serve(groupCtx)
		})
	} else {
		context.AfterFunc(groupCtx, cancelRun)
		close(m.ready)
	}
	group.Go(func() error { return kube.Start(run) })
	group.Go(func() error { return background(run) })
	return group.Wait()
}

// newServing takes the port and returns the function that serves the webhooks
// until its context ends and the server has drained. It registers them when the
// server has a certificate and listens, and not before.
func (m *Manager) newServing(ctx context.Context, kube ctrlmanager.Manager, webhooks []*webhook.Webhook) (func(context.Context) error, error) {
	if err := m.guardOwnPods(webhooks); err != nil {
		return nil, err
	}
	var r *registration.Registration
	if *m.options.RegisterWebHook {
		r = m.registration(webhooks)
		r.Spread = replicaSpread
		if err := m.checkOwner(ctx, r); err != nil {
			return nil, err
		}
	}
	source, err := m.newCertificates(r)
	if err != nil {
		return nil, err
	}
	log := m.options.Logger.Desugar()
	server := webhook.NewServer(webhook.ServerOptions{
		Host: m.options.Host, Port: int(m.options.Port), GetCertificate: source.getCertificate,
		LameDuck: *m.options.DrainPeriod, Logger: log,
	})
	options := webhook.HandlerOptions{
		Scheme: m.options.Scheme, Logger: log, TracerProvider: m.options.TracerProvider,
		MaxBodyBytes: m.options.MaxBodyBytes, MaxInFlight: m.options.MaxInFlight,
	}
	for _, w := range webhooks {
		server.Register(w.Path(), w.Handler(options))
	}
	others := webhook.OtherRevisions(webhooks, options)
	server.Register(webhook.MutatingPath, others)
	server.Register(webhook.ValidatingPath, others)
	if !m.options.NoProbe {
		server.Register(registration.ProbePath, registration.ProbeHandler())
	}
	if err := errors.Join(kube.AddReadyzCheck("webhook", server.StartedChecker()), m.addChecks(kube, source)); err != nil {
		return nil, err
	}
	if err := server.Listen(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := source.wait(ctx); err != nil {
			err = errors.Join(err, server.Close())
			if ctx.Err() != nil {
				return nil // stopped while waiting, which is no failure
			}
			return err
		}
		group, groupCtx := errgroup.WithContext(ctx)
		serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
		defer stopServing()
		// A server that drains needs a certificate as much as before. What is
		// unregistered must not be repaired, so there the upkeep ends first.
		keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
		defer stopKeeping()
		context.AfterFunc(groupCtx, func() {
			if m.options.UnregisterOnStop {
				stopKeeping()
			} else {
				stopServing()
			}
		})
		group.Go(func() error {
			defer stopKeeping()
			return server.Start(serving)
		})
		var unregistered error
		group.Go(func() error {
			defer stopServing()
			unregistered = m.upkeep(keeping, r, source)
			if unregistered != nil {
				return errors.Join(unregistered, server.Close())
			}
			if m.options.UnregisterOnStop {
				return m.removeRegistration(serving)
			}
			return nil
		})
		err := group.Wait()
		if unregistered != nil {
			// The closed port is what came of it, not what went wrong.
			return unregistered
		}
		return err
	}, nil
}

// replicaSpread is within which time replicas register that start together.
const replicaSpread = 500 * time.Millisecond

// upkeep registers, which makes the manager ready, and keeps certificates and
// registration as they should be until ctx ends. What fails at first is an
// error; what fails later is tried again.
func (m *Manager) upkeep(ctx context.Context, r *registration.Registration, source *certificates) error {
	if err := source.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped while registering, which is no failure
		}
		return err
	}
	close(m.ready)
	var group errgroup.Group
	trigger := make(chan struct{}, 1)
	if r != nil && m.probes() {
		group.Go(func() error {
			m.prober.run(ctx, m.probe(r), func() { notify(trigger) }, m.probeFailed())
			return nil
		})
	}
	m.keep(ctx, source, trigger)
	return group.Wait()
}

// RegisterExtensions registers the extensions, creates the CA Secret if need
// be, and returns. It is for the registrar of a split deployment, and can be
// repeated at will; a rotation that is due goes on by one step at each.
func (m *Manager) RegisterExtensions(ctx context.Context) error {
	if _, _, err := m.registerOnce(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

// KeepRegistered registers the extensions and stays, until ctx ends or Stop is
// called: it rotates the CA and repairs what others change. It is the registrar
// of servers that never read the CA's key; see Options.LeafSecretName. Like a
// server it has health checks and metrics, by which one learns that it cannot.
func (m *Manager) KeepRegistered(ctx context.Context) error {
	return m.run(ctx, m.keepRegistered)
}

func (m *Manager) keepRegistered(ctx context.Context) error {
	health := newHealth()
	kube, err := m.newKubeManager(health)
	if err != nil {
		return err
	}
	var registered atomic.Bool
	if err := kube.AddReadyzCheck("registration", func(*http.Request) error {
		if !registered.Load() {
			return errors.New("the webhooks are not registered yet")
		}
		return nil
	}); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if err := m.serveHealth(ctx, ctx, health, group); err != nil {
		return err
	}
	group.Go(func() error { return kube.Start(ctx) })
	group.Go(func() error {
		r, source, err := m.registerOnce(ctx)
		if err == nil {
			err = m.addChecks(kube, source)
		}
		if err != nil {
			return err
		}
		registered.Store(true)
		return m.upkeep(ctx, r, source)
	})
	return group.Wait()
}

// serveHealth takes the address of the health checks, if there is one, and serves
// them in the group until run ends.
func (m *Manager) serveHealth(ctx, run context.Context, health *health, group *errgroup.Group) error {
	if m.options.HealthAddress == "" {
		return nil
	}
	serve, err := health.listen(ctx, m.options.HealthAddress)
	if err != nil {
		return err
	}
	group.Go(func() error { return serve(run) })
	return nil
}

func (m *Manager) registerOnce(ctx context.Context) (*registration.Registration, *certificates, error) {
	if err := m.added(); err != nil {
		return nil, nil, err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, nil, err
	}
	if err := m.guardOwnPods(webhooks); err != nil {
		return nil, nil, err
	}
	if err := m.reach(ctx); err != nil {
		return nil, nil, err
	}
	r := m.registration(webhooks)
	if err := m.checkOwner(ctx, r); err != nil {
		return nil, nil, err
	}
	source, err := m.newCertificates(r)
	if err != nil {
		return nil, nil, err
	}
	if err := source.wait(ctx); err != nil {
		return nil, nil, err
	}
	return r, source, source.check(ctx)
}

// protected are the namespaces without which there is no cluster, or no us.
func (m *Manager) protected() []string {
	return []string{m.options.WebhookNamespace, metav1.NamespaceSystem, "kube-node-lease"}
}

func (m *Manager) webhooks() ([]*webhook.Webhook, error) {
	return webhook.Group(m.parts.Handlers, webhook.Defaults{
		Namespace:     m.options.Namespace,
		PodSelector:   m.options.PodSelector,
		FailurePolicy: *m.options.FailurePolicy,
		Protected:     m.protected(),
	})
}

// checkOwner reports an installation that has the same name. Whatever else is
// wrong is said by what follows.
func (m *Manager) checkOwner(ctx context.Context, r *registration.Registration) error {
	if err := r.Check(ctx, m.clientset.AdmissionregistrationV1().RESTClient()); errors.Is(err, registration.ErrForeign) {
		return err
	}
	return nil
}

func (m *Manager) registration(webhooks []*webhook.Webhook) *registration.Registration {
	o := &m.options
	r := &registration.Registration{
		Name:        o.configurationName(),
		Domain:      o.configurationName() + ".admitkit.dev",
		Labels:      m.labels(),
		Annotations: o.WebhookAnnotations,
		Owner:       o.WebhookOwner,
		Webhooks:    webhooks,
		Target: registration.Target{
			ServiceName: o.ServiceName, ServiceNamespace: o.WebhookNamespace, ServicePort: o.ServicePort,
			Host: o.AdvertiseHost, Port: o.Port,
		},
		ForeignBundle:     o.ForeignCABundle,
		IgnoreUntilProbed: o.IgnoreUntilProbed,
		Probed:            m.prober.hasPassed,
		Started:           m.clock.Now(),
	}
	if !o.NoProbe {
		r.ProbeNamespace = o.WebhookNamespace
	}
	return r
}

// labels are on every object that the manager makes.
func (m *Manager) labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by": "admitkit",
		"admitkit.dev/fingerprint":     m.options.OperatorFingerprint,
	}
}

// reachTimeout is how long a start waits for an API server that does not
// answer: long enough for one that restarts, short enough to read the reason.
const reachTimeout = 8 * time.Second

// reach makes sure that there is an API server, so that a wrong address is not
// reported as something else later.
func (m *Manager) reach(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, reachTimeout, true, func(ctx context.Context) (bool, error) {
		last = m.clientset.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
		var status apierrors.APIStatus
		// An answer of any kind is an answer; 401 is reported by what follows.
		return last == nil || errors.As(last, &status) && status.Status().Code < 500, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("no API server answers at %s within %s: %w", m.options.RESTConfig.Host, reachTimeout, last)
}

// setLogger: controller-runtime's function is not safe for managers that start
// at the same moment.
var setLogger sync.Once

// newKubeManager makes the controller-runtime manager that runs reconcilers and
// watchers. Its cache is confined to the manager's namespace and trimmed, so
// that memory follows the objects that the extensions look at.
func (m *Manager) newKubeManager(health *health) (ctrlmanager.Manager, error) {
	if err := addProcessMetrics(); err != nil {
		return nil, err
	}
	kube, err := ctrlmanager.New(m.options.RESTConfig, m.kubeOptions())
	if err != nil {
		return nil, fmt.Errorf("MetricsAddress: %w", err)
	}
	made := kubeManager{Manager: kube, health: health}
	if m.options.LeaderElection {
		made.elected = make(chan struct{})
	}
	return made, nil
}

func (m *Manager) kubeOptions() ctrlmanager.Options {
	// Names of controllers are checked for uniqueness across the whole process,
	// which a second manager in it would fail.
	skipNameValidation := true
	logger := zapr.NewLogger(m.options.Logger.Desugar())
	// Parts of controller-runtime log through a global logger, and complain on
	// standard error while it is not set. The first who sets it wins: an author
	// who did so before keeps theirs.
	setLogger.Do(func() { ctrllog.SetLogger(logger) })
	options := ctrlmanager.Options{
		Scheme:                 m.options.Scheme,
		Logger:                 logger,
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                metricsserver.Options{BindAddress: off(m.options.MetricsAddress)},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: &skipNameValidation},
	}
	if m.options.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{m.options.Namespace: {}}
	}
	return options
}

// off is how controller-runtime is told to serve nothing at an address.
func off(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
