package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/extension"
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
	if m.gate != nil { // a server is ready without it: it converts
		health.AddReady("conversion", m.gate.check)
		group.Go(func() error {
			m.gate.wait(ctx) // a replica that does not lead looks, too
			return nil
		})
	}
	if err := m.serveHealth(ctx, ctx, health, group); err != nil {
		return err
	}
	group.Go(func() error { return m.runKube(ctx, kube, health) })
	group.Go(func() error { return background(ctx) })
	group.Go(func() error {
		m.watchNamespaces(ctx)
		return nil
	})
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

// background is what does not answer admissions.
type background struct {
	reconcilers []extension.Reconciler
	watchers    []extension.Watcher
}

func (b background) empty() bool { return len(b.reconcilers)+len(b.watchers) == 0 }

// everywhere returns the watchers that run in every replica.
func (m *Manager) everywhere() background {
	return background{watchers: slices.DeleteFunc(slices.Clone(m.parts.Watchers), func(w extension.Watcher) bool { return !host.EveryReplica(w) })}
}

// once returns what runs in one replica at a time.
func (m *Manager) once() background {
	return background{m.parts.Reconcilers, slices.DeleteFunc(slices.Clone(m.parts.Watchers), host.EveryReplica)}
}

// newBackground returns a function that runs both until its context ends, what runs in
// one replica only while this one leads. That has then a controller-runtime manager of
// its own, because a manager that loses its Lease ends, while every replica keeps
// answering admissions. again says to wait for the Lease once more, and not to end.
func (m *Manager) newBackground(kube ctrlmanager.Manager, everywhere, once background, again bool) (func(context.Context) error, error) {
	if !m.options.Watching.LeaderElection {
		everywhere = background{once.reconcilers, slices.Concat(once.watchers, everywhere.watchers)}
		once = background{}
	}
	if err := m.addBackground(m, kube, everywhere); err != nil {
		return nil, err
	}
	if once.empty() {
		return func(context.Context) error { return nil }, nil
	}
	// Made here, so that a failure to register ends the start.
	elected, err := m.newElected(kube, once)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		first := elected.Elected()
		go func() {
			select {
			case <-first:
				close(kube.(kubeManager).elected)
			case <-ctx.Done():
			}
		}()
		for {
			err := m.runKube(ctx, elected, kube.(kubeManager).health)
			m.caches.Forget()
			if !again || ctx.Err() != nil || err != nil && !strings.Contains(err.Error(), "leader election lost") {
				return err
			}
			m.logError("leader election", fmt.Errorf("lost the Lease, reconcilers and watchers wait to get it back: %w", err))
			if elected = m.electAgain(ctx, kube, once); elected == nil {
				return nil
			}
		}
	}, nil
}

// electAgain makes another manager for what lost the Lease. It needs the API server,
// which may be why the Lease was lost: it tries until ctx ends, and then returns nil,
// while admissions are answered.
func (m *Manager) electAgain(ctx context.Context, kube ctrlmanager.Manager, b background) ctrlmanager.Manager {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rewatchInterval):
		}
		elected, err := m.newElected(kube, b)
		if err == nil {
			return elected
		}
		m.logError("leader election", err)
	}
}

// backgroundManager is the manager that is passed to what runs only in the elected
// replica, or waits for conversions.
type backgroundManager struct {
	*Manager
	kube ctrlmanager.Manager
}

func (h backgroundManager) GetKubeManager() ctrlmanager.Manager { return h.kube }

// newElected makes a controller-runtime manager that runs while it holds the Lease.
func (m *Manager) newElected(kube ctrlmanager.Manager, b background) (ctrlmanager.Manager, error) {
	options, err := m.kubeOptions()
	if err != nil {
		return nil, err
	}
	options.LeaderElection = true
	options.LeaderElectionID = m.options.configurationName()
	options.LeaderElectionNamespace = m.options.WebhookNamespace
	options.LeaderElectionReleaseOnCancel = true
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return sharedCache{kube.GetCache()}, nil }
	elected, err := ctrlmanager.New(m.options.RESTConfig, options)
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	withChecks := kube.(kubeManager)
	withChecks.Manager, withChecks.elected = elected, nil
	return withChecks, m.addBackground(backgroundManager{m, withChecks}, withChecks, b)
}

// sharedCache is a cache that another manager starts and stops.
type sharedCache struct{ cache.Cache }

func (sharedCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// withScheme adds the remedy to the error of a type that the scheme lacks.
func withScheme(err error) error {
	if runtime.IsNotRegisteredError(err) {
		return fmt.Errorf("%w: add the type to Options.Scheme", err)
	}
	return err
}

func (m *Manager) addBackground(as extension.Manager, kube ctrlmanager.Manager, b background) error {
	if m.gate != nil && !b.empty() {
		gated := kube.(kubeManager)
		gated.gate = m.gate
		as, kube = backgroundManager{m, gated}, gated
	}
	added := kube.(kubeManager).added
	for _, r := range b.reconcilers {
		before := added.Load()
		if err := r.Register(as); err != nil {
			return fmt.Errorf("registering %T: %w", r, withScheme(err))
		}
		if added.Load() == before {
			m.options.Logger.Warnw("a Reconciler has no controller, so nobody calls Reconcile: make one in Register, with builder.ControllerManagedBy(mgr.GetKubeManager())",
				"reconciler", fmt.Sprintf("%T", r))
		}
	}
	if len(b.watchers) == 0 {
		return nil
	}
	for _, w := range b.watchers {
		if err := m.parts.RegisterWatcher(as, w); err != nil {
			return err
		}
	}
	return kube.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error { return m.watch(ctx, as, kube.GetRESTMapper(), b.watchers) }))
}
