package manager

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/manager/internal/health"
)

// Start registers the extensions (unless RegisterWebHook is false), serves
// admissions, and runs watchers and reconcilers (unless Watching.ReconcilerUser says that
// they run elsewhere). It returns when ctx ends or Stop
// is called and the drain is over, or with the first error.
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
	err = do(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // stopped at whatever step: not a failure
	}
	return fmt.Errorf("manager: %w", err)
}

// start takes every address and finds every error that it can before anything is
// registered, and then runs the parts.
//
// Two contexts matter here. ctx ends when the manager should stop: the webhooks
// then drain. Everything else, the extensions included, runs in a context that
// outlives ctx until the last request is answered.
func (m *Manager) start(ctx context.Context) error {
	webhooks, err := m.webhooks()
	if err != nil {
		return err
	}
	if err := m.reach(ctx); err != nil {
		return err
	}
	health := health.New()
	kube, err := m.newKubeManager(health)
	if err != nil {
		return err
	}
	run, endRun := context.WithCancel(context.WithoutCancel(ctx))
	defer endRun()
	s, err := m.newServing(ctx, run, webhooks)
	if err != nil {
		return err
	}
	m.enter(run, kube, s.source)
	once, process := m.once(), host.Serves|host.Reconciles
	if m.options.Watching.ReconcilerUser != "" {
		once, process = background{}, host.Serves
	}
	if s.readsSynced, err = m.startReads(ctx, kube, process); err != nil {
		return err
	}
	if err := m.parts.Register(m); err != nil {
		return err
	}
	background, err := m.newBackground(kube, m.everywhere(), once, true)
	if err != nil {
		return err
	}
	if err := s.listen(ctx, kube); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if err := m.serveHealth(ctx, run, health, group); err != nil {
		return err
	}
	group.Go(func() error {
		defer endRun()
		return s.run(groupCtx)
	})
	group.Go(func() error { return kube.Start(run) })
	group.Go(func() error { return background(run) })
	return group.Wait()
}

// enter sets what extensions get from GetContext, GetKubeManager and
// GetServingCertificate. source is nil in a process that does not serve.
func (m *Manager) enter(run context.Context, kube ctrlmanager.Manager, source certs.Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctx, m.kube, m.source = run, kube, source
}

// serveHealth takes the address of the health checks, if there is one, and serves
// them in the group until run ends.
func (m *Manager) serveHealth(ctx, run context.Context, health *health.Health, group *errgroup.Group) error {
	if m.options.Serving.HealthAddress == "" {
		return nil
	}
	serve, err := health.Listen(ctx, m.options.Serving.HealthAddress)
	if err != nil {
		return err
	}
	group.Go(func() error { return serve(run) })
	return nil
}
