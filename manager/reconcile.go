package manager

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/health"
)

// Reconcile runs only the reconcilers, and the watchers that do not ask to run in every
// replica, until ctx ends or Stop is called. It is for a process that alone has the
// rights of the reconcilers and that nobody can reach, beside servers whose
// Watching.ReconcilerUser names its user. If it loses the Lease of the leader election,
// it returns an error, and is to be started again.
func (m *Manager) Reconcile(ctx context.Context) error {
	return m.run(ctx, func(ctx context.Context) error {
		once := m.once()
		if once.empty() {
			return errors.New("there is nothing to reconcile: no extension has a Reconciler, or a Watcher that runs in one replica")
		}
		return m.runBackground(ctx, background{}, once, host.Reconciles)
	})
}

// runBackground runs what does not answer admissions, with health checks and metrics.
func (m *Manager) runBackground(ctx context.Context, everywhere, once background, process host.Process) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	if err := m.checkReconcilerUser(ctx); err != nil {
		return err
	}
	health := health.New()
	kube, err := m.newKubeManager(health)
	if err != nil {
		return err
	}
	m.enter(ctx, kube, nil)
	if _, err := m.startReads(ctx, kube, process); err != nil {
		return err
	}
	if err := m.parts.RegisterRecorders(m); err != nil {
		return err
	}
	background, err := m.newBackground(kube, everywhere, once, process == host.Watches)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if err := m.serveHealth(ctx, ctx, health, group); err != nil {
		return err
	}
	group.Go(func() error { return kube.Start(ctx) })
	group.Go(func() error { return background(ctx) })
	return group.Wait()
}

// checkReconcilerUser makes sure that the servers, which have the same option, believe
// what this process writes.
func (m *Manager) checkReconcilerUser(ctx context.Context) error {
	want := m.options.Watching.ReconcilerUser
	if want == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	review, err := m.clients.Authentication.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("asking the API server who this process is: %w", err)
	}
	if user := review.Status.UserInfo.Username; user != want {
		return fmt.Errorf("Watching.ReconcilerUser: this process is the user %q, not %q: the servers would refuse what it writes", user, want)
	}
	return nil
}
