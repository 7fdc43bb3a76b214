package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/paths"
	"github.com/admitkit/admitkit/webhook"
)

// upkeep keeps certificates and registration as they should be.
type upkeep struct {
	*Manager
	registration *registration.Registration // nil in a process that does not register
	source       certs.Source
	paths        *paths.Paths // nil if these are plain
	// serveToo serves webhooks before they are registered; nil in a process that does not serve.
	serveToo func([]*webhook.Webhook)
}

// namespaceMissing names the option of the namespace that an API server does not have.
func (m *Manager) namespaceMissing(err error) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(status) {
		return err
	}
	if details := status.ErrStatus.Details; details == nil || details.Kind != "namespaces" || details.Name != m.options.WebhookNamespace {
		return err
	}
	return fmt.Errorf("WebhookNamespace: %q does not exist: create it, or name the manager's own namespace: %w", m.options.WebhookNamespace, err)
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
	var beside sync.WaitGroup
	for _, loop := range u.loops(trigger) {
		beside.Go(func() { loop(ctx) })
	}
	u.runSource(ctx, trigger)
	beside.Wait()
	return nil
}

// loops returns what runs beside the source, each until its context ends.
func (u *upkeep) loops(trigger chan<- struct{}) []func(context.Context) {
	changed := func() { notify(trigger) }
	loops := []func(context.Context){u.announce, func(ctx context.Context) {
		u.followModes(ctx, func(webhooks []*webhook.Webhook) {
			if u.serveToo != nil {
				u.serveToo(webhooks)
			}
			changed()
		})
	}}
	if u.serveToo != nil {
		loops = append(loops, u.tellEnded, func(ctx context.Context) { u.follow(ctx, &u.exemptionsFile, u.setExemptions) })
	}
	if u.paths != nil {
		loops = append(loops, func(ctx context.Context) { u.paths.Run(ctx, changed) })
	}
	if u.registration != nil && u.probes() {
		loops = append(loops, func(ctx context.Context) { u.prober.Run(ctx, u.probe(u.registration), changed, u.probeFailed()) })
	}
	if u.registration != nil {
		webhooks := u.registration.Webhooks
		loops = append(loops, u.watchNamespaces, func(ctx context.Context) { u.watchServed(ctx, webhooks) })
	}
	return loops
}

// wait returns when there is a certificate to serve, and the key of the paths.
func (u *upkeep) wait(ctx context.Context) error {
	if err := u.source.Wait(ctx); err != nil || u.paths == nil {
		return u.namespaceMissing(err)
	}
	return u.paths.Wait(ctx)
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

// servedInterval is the pause before the next look at discovery, while a resource is not
// served.
const servedInterval = 10 * time.Second

// discoveryTimeout limits one look.
const discoveryTimeout = 5 * time.Second

// watchServed says which resources of the scopes the API server does not serve, until it
// serves them all or ctx ends. That is no error: a CustomResourceDefinition may come
// later, and API servers of other versions serve other resources. But until then the
// extension is never called, which would look as if all was well.
func (m *Manager) watchServed(ctx context.Context, webhooks []*webhook.Webhook) {
	known := map[apiserver.Unserved]bool{}
	defer func() {
		for u := range known {
			scopeUnserved.Delete(seriesOf(u))
		}
	}()
	for {
		found, err := m.tellUnserved(ctx, webhooks, known)
		if err == nil && len(found) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(servedInterval):
		}
	}
}

// tellUnserved looks once, and says what is new since the last look, which known has.
func (m *Manager) tellUnserved(ctx context.Context, webhooks []*webhook.Webhook, known map[apiserver.Unserved]bool) ([]apiserver.Unserved, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	if !slices.ContainsFunc(webhooks, func(w *webhook.Webhook) bool { return slices.ContainsFunc(w.Scope.Rules, apiserver.NamesResources) }) {
		return nil, nil
	}
	_, lists, err := m.clients.Discovery.ServerGroupsAndResourcesWithContext(ctx)
	// An aggregated API server that is down hides its resources, not those of others.
	var failed *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &failed) {
		m.options.Logger.Infow("cannot ask the API server which resources it serves; the scopes are not checked yet", "error", err)
		return nil, err
	}
	found := apiserver.UnservedIn(webhooks, lists, func(group string) bool {
		if failed == nil {
			return false
		}
		for version := range failed.Groups {
			if version.Group == group {
				return true
			}
		}
		return false
	})
	for _, u := range found {
		if known[u] {
			continue
		}
		known[u] = true
		scopeUnserved.With(seriesOf(u)).Set(1)
		m.options.Logger.Warnw("no admission comes to a webhook for a resource of its scope: "+u.Why,
			"webhook", u.Webhook, "extensions", u.Extensions, "field", u.Field, "resource", u.Resource)
		m.warning("NotServed", fmt.Sprintf("webhook %s (%s): Scope.%s: %s", u.Webhook, u.Extensions, u.Field, u.Why))
	}
	for u := range known {
		if !slices.Contains(found, u) {
			delete(known, u)
			scopeUnserved.Delete(seriesOf(u))
			m.options.Logger.Infow("the API server serves the resource now", "webhook", u.Webhook, "extensions", u.Extensions, "resource", u.Resource)
		}
	}
	return found, err
}

// seriesOf returns the labels of the metric.
func seriesOf(u apiserver.Unserved) prometheus.Labels {
	return prometheus.Labels{"webhook": u.Webhook, "resource": u.Resource}
}
