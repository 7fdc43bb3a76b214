package manager

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
)

// upkeep keeps certificates and registration as they should be.
type upkeep struct {
	*Manager
	registration *registration.Registration // nil in a process that does not register
	source       certs.Source
}

// run registers, which makes the manager ready, and then repairs and renews until
// ctx ends. The first failure is an error; a later one is tried again.
func (u *upkeep) run(ctx context.Context) error {
	trigger := make(chan struct{}, 1)
	if u.registration != nil {
		defer u.repairLater(trigger)()
	}
	if err := u.source.Check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped while registering: not a failure
		}
		return err
	}
	var group errgroup.Group
	group.Go(func() error {
		u.announce(ctx)
		return nil
	})
	if u.registration != nil && u.probes() {
		group.Go(func() error {
			u.prober.Run(ctx, u.probe(u.registration), func() { notify(trigger) }, u.probeFailed())
			return nil
		})
	}
	if u.registration != nil {
		group.Go(func() error {
			u.watchServed(ctx, u.registration.Webhooks)
			return nil
		})
	}
	u.runSource(ctx, trigger)
	return group.Wait()
}

// repairLater triggers a check when a repair is due that was put off. The function that
// it returns ends that.
func (u *upkeep) repairLater(trigger chan<- struct{}) (stop func() bool) {
	due := time.AfterFunc(time.Hour, func() { notify(trigger) })
	u.registration.Later = func(wait time.Duration) { due.Reset(wait) }
	return due.Stop
}

// announce makes the manager ready when it is registered, which may wait for
// CustomResourceDefinitions.
func (u *upkeep) announce(ctx context.Context) {
	var conversions *registration.Conversions
	if u.registration != nil {
		conversions = u.registration.Conversions
	}
	select {
	case <-ctx.Done():
	case <-conversions.Applied():
		close(u.ready)
	}
}

// runSource runs the source until ctx ends. Watches trigger its checks.
func (u *upkeep) runSource(ctx context.Context, trigger chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	for _, w := range u.watches() {
		group.Go(func() error {
			u.watchOne(ctx, w, trigger)
			return nil
		})
	}
	u.source.Run(ctx, trigger)
	cancel()
	_ = group.Wait() // watchOne has no error
}

// watched is one object to watch.
type watched struct {
	name  string
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// watches returns what upkeep depends on.
func (u *upkeep) watches() []watched {
	var all []watched
	if name := u.source.SecretName(); name != "" {
		all = append(all, watched{name, u.clients.Core.Secrets(u.options.WebhookNamespace).Watch})
	}
	if u.registration != nil {
		client, name := u.clients.Admissionregistration, u.options.configurationName()
		all = append(all, watched{name, client.MutatingWebhookConfigurations().Watch}, watched{name, client.ValidatingWebhookConfigurations().Watch})
		for _, crd := range u.registration.Conversions.Names() {
			all = append(all, watched{crd, u.watchCRD})
		}
	}
	return all
}

// rewatchInterval is the pause before a watch that ended begins again. A missed
// event does no harm, since checks are also made at intervals.
const rewatchInterval = 2 * time.Second

// watchOne puts an entry into trigger whenever the object changes.
func (u *upkeep) watchOne(ctx context.Context, object watched, trigger chan<- struct{}) {
	selector := metav1.SingleObject(metav1.ObjectMeta{Name: object.name})
	for ctx.Err() == nil {
		w, err := object.watch(ctx, selector)
		if err != nil {
			u.options.Logger.Debugw("cannot watch", "name", object.name, "error", err)
		} else {
			for open := true; open && ctx.Err() == nil; {
				select {
				case <-ctx.Done():
				case _, open = <-w.ResultChan():
					notify(trigger)
				}
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rewatchInterval):
		}
	}
}

// notify does not block: one entry is enough.
func notify(trigger chan<- struct{}) {
	select {
	case trigger <- struct{}{}:
	default:
	}
}
