package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/discovery"

	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/webhook"
)

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
		m.event("NotServed", fmt.Sprintf("webhook %s (%s): Scope.%s: %s", u.Webhook, u.Extensions, u.Field, u.Why))
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
