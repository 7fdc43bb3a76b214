package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/zapr"
	"github.com/spf13/afero"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/webhook"
	"github.com/admitkit/admitkit/webhook/registration"
)

// Start registers the extensions (unless told not to), serves admissions, and
// runs watchers and reconcilers. It returns when ctx ends, or Stop is called,
// and the drain is over; or with the first error.
func (m *Manager) Start(ctx context.Context) error {
	ctx, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer m.cancel()
	defer m.httpClient.CloseIdleConnections()
	if err := m.start(ctx); err != nil {
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
	kube, err := m.newKubeManager()
	if err != nil {
		return err
	}

	// What extensions run in outlives ctx until the last request is answered.
	run, cancelRun := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRun()
	m.mu.Lock()
	m.ctx, m.kube = run, kube
	m.mu.Unlock()

	for _, a := range m.admissions {
		if err := a.Register(m); err != nil {
			return err
		}
	}
	for _, r := range m.reconcilers {
		if err := r.Register(m); err != nil {
			return fmt.Errorf("registering %T: %w", r, err)
		}
	}
	if len(m.watchers) > 0 {
		if err := kube.Add(ctrlmanager.RunnableFunc(m.watchPods)); err != nil {
			return err
		}
	}

	group, groupCtx := errgroup.WithContext(ctx)
	if len(webhooks) > 0 {
		serve, err := m.newServing(ctx, kube, webhooks)
		if err != nil {
			return err
		}
		group.Go(func() error {
			defer cancelRun()
			return serve(groupCtx)
		})
	} else {
		context.AfterFunc(groupCtx, cancelRun)
		close(m.ready)
	}
	group.Go(func() error { return kube.Start(run) })
	return group.Wait()
}

// newServing takes the port and returns the function that serves the webhooks
// until its context ends and the server has drained. It registers them when the
// server has a certificate and listens, and not before.
func (m *Manager) newServing(ctx context.Context, kube ctrlmanager.Manager, webhooks []*webhook.Webhook) (func(context.Context) error, error) {
	source, err := m.newCertificates(webhooks)
	if err != nil {
		return nil, err
	}
	log := m.options.Logger.Desugar()
	server := webhook.NewServer(webhook.ServerOptions{
		Host: m.options.Host, Port: int(m.options.Port), GetCertificate: source.getCertificate,
		LameDuck: *m.options.DrainPeriod, Logger: log,
	})
	for _, w := range webhooks {
		server.Register(w.Path(), w.Handler(webhook.HandlerOptions{
			Scheme: m.options.Scheme, Logger: log, TracerProvider: m.options.TracerProvider,
			MaxBodyBytes: m.options.MaxBodyBytes, MaxInFlight: m.options.MaxInFlight,
		}))
	}
	if err := kube.AddReadyzCheck("webhook", server.StartedChecker()); err != nil {
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
		group.Go(func() error { return server.Start(serving) })
		group.Go(func() error {
			<-groupCtx.Done()
			defer stopServing()
			if m.options.UnregisterOnStop {
				return m.removeRegistration(serving)
			}
			return nil
		})
		group.Go(func() error {
			source.run(groupCtx)
			return nil
		})
		var unregistered error
		group.Go(func() error {
			if *m.options.RegisterWebHook {
				if err := m.register(groupCtx, webhooks, source.bundle); err != nil {
					if groupCtx.Err() != nil {
						return nil //nolint:nilerr // stopped while registering, which is no failure
					}
					unregistered = err
					return errors.Join(err, server.Close())
				}
			}
			close(m.ready)
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

// RegisterExtensions registers the extensions, creates the CA Secret if need
// be, and returns. It is for the registrar of a split deployment, and can be
// repeated at will.
func (m *Manager) RegisterExtensions(ctx context.Context) error {
	webhooks, err := m.webhooks()
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := m.reach(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	source, err := m.newCertificates(webhooks)
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := source.wait(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := m.register(ctx, webhooks, source.bundle); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

// UnregisterExtensions removes what RegisterExtensions made: the webhook
// configurations first, so that nothing is called that can no longer answer,
// then the CA Secret. It does not matter which extensions were added.
func (m *Manager) UnregisterExtensions(ctx context.Context) error {
	if err := m.reach(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := m.removeRegistration(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if !*m.options.SetupCertificate || m.options.CertificateDir != "" {
		return nil
	}
	namespace, secret := m.options.WebhookNamespace, m.options.SetupCertificateName
	err := m.clientset.CoreV1().Secrets(namespace).Delete(ctx, secret, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("manager: deleting Secret %s/%s: %w", namespace, secret, err)
	}
	m.options.Logger.Infow("CA Secret removed", "secret", namespace+"/"+secret)
	return nil
}

func (m *Manager) removeRegistration(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	name := m.options.configurationName()
	if err := registration.Remove(ctx, m.clientset.AdmissionregistrationV1(), name); err != nil {
		return err
	}
	m.options.Logger.Infow("webhook configurations removed", "name", name)
	return nil
}

// protected are the namespaces without which there is no cluster, or no us.
func (m *Manager) protected() []string {
	return []string{m.options.WebhookNamespace, metav1.NamespaceSystem, "kube-node-lease"}
}

func (m *Manager) webhooks() ([]*webhook.Webhook, error) {
	return webhook.Group(m.admissions, webhook.Defaults{
		Namespace:     m.options.Namespace,
		PodSelector:   m.options.PodSelector,
		FailurePolicy: *m.options.FailurePolicy,
		Protected:     m.protected(),
	})
}

func (m *Manager) register(ctx context.Context, webhooks []*webhook.Webhook, bundle func() ([]byte, error)) error {
	pem, err := bundle()
	if err != nil {
		return err
	}
	r := registration.Registration{
		Name:     m.options.configurationName(),
		Domain:   m.options.configurationName() + ".admitkit.dev",
		Labels:   m.labels(),
		Webhooks: webhooks,
		Target: registration.Target{
			ServiceName: m.options.ServiceName, ServiceNamespace: m.options.WebhookNamespace, ServicePort: m.options.ServicePort,
			Host: m.options.AdvertiseHost, Port: m.options.Port,
		},
		Bundle: pem,
	}
	if err := r.Apply(ctx, m.clientset.AdmissionregistrationV1()); err != nil {
		return err
	}
	m.options.Logger.Infow("webhooks registered", "name", r.Name, "webhooks", len(webhooks))
	return nil
}

// labels are on every object that the manager makes.
func (m *Manager) labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by": "admitkit",
		"admitkit.dev/fingerprint":     m.options.OperatorFingerprint,
	}
}

// certificates is where serving certificates come from.
type certificates struct {
	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	bundle         func() ([]byte, error)
	// wait returns when there is a certificate to serve.
	wait func(context.Context) error
	// run keeps it fresh until the context ends.
	run func(context.Context)
}

func (m *Manager) newCertificates(webhooks []*webhook.Webhook) (*certificates, error) {
	if m.options.CertificateDir != "" {
		files, err := certs.NewFiles(afero.NewOsFs(), m.options.CertificateDir, clock.RealClock{})
		if err != nil {
			return nil, fmt.Errorf("CertificateDir: %w", err)
		}
		return &certificates{
			getCertificate: files.GetCertificate,
			bundle:         files.Bundle,
			wait:           func(context.Context) error { return nil },
			run:            func(context.Context) {},
		}, nil
	}
	source := &certificates{}
	authority := certs.NewAuthority(certs.Options{
		Secrets:   m.clientset.CoreV1().Secrets(m.options.WebhookNamespace),
		Namespace: m.options.WebhookNamespace,
		Name:      m.options.SetupCertificateName,
		Labels:    m.labels(),
		Hosts:     m.options.hosts(),
		ReadOnly:  !*m.options.SetupCertificate,
		Logger:    m.options.Logger.Desugar(),
		OnBundle: func(ctx context.Context) error {
			if !*m.options.RegisterWebHook {
				return nil
			}
			return m.register(ctx, webhooks, source.bundle)
		},
	})
	*source = certificates{
		getCertificate: authority.GetCertificate,
		bundle:         func() ([]byte, error) { return authority.Bundle(), nil },
		wait:           authority.Wait,
		run:            authority.Run,
	}
	return source, nil
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

// newKubeManager makes the controller-runtime manager that runs reconcilers and
// watchers. Its cache is confined to the manager's namespace and trimmed, so
// that memory follows the objects that the extensions look at.
func (m *Manager) newKubeManager() (ctrlmanager.Manager, error) {
	// Names of controllers are checked for uniqueness across the whole process,
	// which a second manager in it would fail.
	skipNameValidation := true
	logger := zapr.NewLogger(m.options.Logger.Desugar())
	// Parts of controller-runtime log through a global logger, and complain on
	// standard error while it is not set. The first who sets it wins: an author
	// who did so before keeps theirs.
	ctrllog.SetLogger(logger)
	options := ctrlmanager.Options{
		Scheme:                        m.options.Scheme,
		Logger:                        logger,
		Cache:                         cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                       metricsserver.Options{BindAddress: off(m.options.MetricsAddress)},
		HealthProbeBindAddress:        off(m.options.HealthAddress),
		LeaderElection:                m.options.LeaderElection,
		LeaderElectionID:              m.options.configurationName(),
		LeaderElectionNamespace:       m.options.WebhookNamespace,
		LeaderElectionReleaseOnCancel: true,
		Controller:                    config.Controller{SkipNameValidation: &skipNameValidation},
	}
	if m.options.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{m.options.Namespace: {}}
	}
	kube, err := ctrlmanager.New(m.options.RESTConfig, options)
	if err != nil {
		return nil, fmt.Errorf("HealthAddress, MetricsAddress or leader election: %w", err)
	}
	if err := kube.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return kube, nil
}

// off is how controller-runtime is told to serve nothing at an address.
func off(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
