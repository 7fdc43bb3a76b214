package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/extension"
)

// background is what does not answer admissions.
type background struct {
	reconcilers []extension.Reconciler
	watchers    []extension.Watcher
}

// newBackground returns a function that runs the reconcilers and watchers until its
// context ends. With leader election they get a controller-runtime manager of their
// own, because a manager that loses its lease ends, while every replica keeps
// answering admissions.
func (m *Manager) newBackground(kube ctrlmanager.Manager, reconcilers []extension.Reconciler) (func(context.Context) error, error) {
	here, elsewhere := background{reconcilers, m.parts.Watchers}, background{}
	if m.options.Watching.LeaderElection {
		elsewhere = background{reconcilers, slices.DeleteFunc(slices.Clone(m.parts.Watchers), everyReplica)}
		here = background{watchers: slices.DeleteFunc(slices.Clone(m.parts.Watchers), func(w extension.Watcher) bool { return !everyReplica(w) })}
	}
	if err := m.addBackground(m, kube, here); err != nil {
		return nil, err
	}
	if len(elsewhere.reconcilers)+len(elsewhere.watchers) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	// Made here, so that a failure to register ends the start.
	elected, err := m.newElected(kube, elsewhere)
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
			err := elected.Start(ctx)
			if ctx.Err() != nil || err != nil && !strings.Contains(err.Error(), "leader election lost") {
				return err
			}
			m.logError("leader election", fmt.Errorf("lost the Lease, reconcilers and watchers wait to get it back: %w", err))
			if elected = m.electAgain(ctx, kube, elsewhere); elected == nil {
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

// electedManager is the manager that is passed to what runs only in the elected
// replica.
type electedManager struct {
	*Manager
	kube ctrlmanager.Manager
}

func (h electedManager) GetKubeManager() ctrlmanager.Manager { return h.kube }

// newElected makes a controller-runtime manager that runs while it holds the Lease.
func (m *Manager) newElected(kube ctrlmanager.Manager, b background) (ctrlmanager.Manager, error) {
	options := m.kubeOptions()
	options.LeaderElection = true
	options.LeaderElectionID = m.options.configurationName()
	options.LeaderElectionNamespace = m.options.WebhookNamespace
	options.LeaderElectionReleaseOnCancel = true
	if lease := m.options.Watching.lease; lease > 0 {
		renew, retry := lease*2/3, lease/8 // in the proportions of the defaults
		options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &lease, &renew, &retry
	}
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return sharedCache{kube.GetCache()}, nil }
	elected, err := ctrlmanager.New(m.options.RESTConfig, options)
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	withChecks := kube.(kubeManager)
	withChecks.Manager, withChecks.elected = elected, nil
	return withChecks, m.addBackground(electedManager{m, withChecks}, withChecks, b)
}

// sharedCache is a cache that another manager starts and stops.
type sharedCache struct{ cache.Cache }

func (sharedCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (m *Manager) addBackground(as extension.Manager, kube ctrlmanager.Manager, b background) error {
	for _, r := range b.reconcilers {
		if err := r.Register(as); err != nil {
			return fmt.Errorf("registering %T: %w", r, err)
		}
	}
	if len(b.watchers) == 0 {
		return nil
	}
	return kube.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error { return m.watchPods(ctx, as, b.watchers) }))
}
