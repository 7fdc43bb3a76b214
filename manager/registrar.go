package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/health"
)

// RegisterExtensions registers the extensions, creates the CA Secret if it does not
// exist, and returns. It is for the registrar of a split deployment, and may be
// called any number of times; each call takes one step of a rotation that is due.
func (m *Manager) RegisterExtensions(ctx context.Context) error {
	u, err := m.registerOnce(ctx)
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := u.registration.Conversions.Check(); err != nil {
		return fmt.Errorf("manager: %w; or keep the registrar running (KeepRegistered, `register --stay`), which waits for it", err)
	}
	// Once more, which finds that the paths are registered: the former ones end then.
	if err := u.source.Check(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	// What it finds is logged; it is no reason not to have registered.
	_, _ = m.tellUnserved(ctx, u.registration.Webhooks, map[apiserver.Unserved]bool{})
	m.tellMissing(ctx, map[string]bool{})
	return nil
}

// KeepRegistered registers the extensions and goes on, until ctx ends or Stop is
// called: it rotates the CA and repairs what others change. It is the registrar for
// servers that never read the CA's key; see CertificateOptions. Like a server,
// it has health checks and metrics that report its failures.
func (m *Manager) KeepRegistered(ctx context.Context) error {
	return m.run(ctx, m.keepRegistered)
}

func (m *Manager) keepRegistered(ctx context.Context) error {
	health := health.New()
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
		u, err := m.registerOnce(ctx)
		if err == nil {
			err = m.addChecks(kube, u.source, u.registration)
		}
		if err != nil {
			return err
		}
		registered.Store(true)
		return u.run(ctx)
	})
	return group.Wait()
}

// registerOnce registers, and returns the upkeep for what it registered.
func (m *Manager) registerOnce(ctx context.Context) (*upkeep, error) {
	if err := errors.Join(m.added(), m.options.hasPort()); err != nil {
		return nil, err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, err
	}
	if err := m.guardOwnPods(webhooks); err != nil {
		return nil, err
	}
	m.tellModes(webhooks)
	if err := m.reach(ctx); err != nil {
		return nil, err
	}
	u := &upkeep{Manager: m, registration: m.registration(webhooks)}
	if err := m.checkOwner(ctx, u.registration); err != nil {
		return nil, err
	}
	m.warnOfEiriniX(ctx)
	if u.source, err = m.newSource(u.registration); err != nil {
		return nil, err
	}
	u.paths = m.newPaths(u.registration)
	if err := u.wait(ctx); err != nil {
		return nil, err
	}
	return u, u.source.Check(ctx)
}
