package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

// unserved is a resource in the scope of a webhook for which no admission comes.
type unserved struct {
	webhook, field, resource, why string
	// extensions are those in the webhook.
	extensions string
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
	known := map[unserved]bool{}
	defer func() {
		for u := range known {
			scopeUnserved.Delete(u.labels())
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
func (m *Manager) tellUnserved(ctx context.Context, webhooks []*webhook.Webhook, known map[unserved]bool) ([]unserved, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	if !slices.ContainsFunc(webhooks, func(w *webhook.Webhook) bool { return slices.ContainsFunc(w.Scope.Rules, namesResources) }) {
		return nil, nil
	}
	_, lists, err := m.clients.discovery.ServerGroupsAndResourcesWithContext(ctx)
	// An aggregated API server that is down hides its resources, not those of others.
	var failed *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &failed) {
		m.options.Logger.Infow("cannot ask the API server which resources it serves; the scopes are not checked yet", "error", err)
		return nil, err
	}
	found := unservedOf(webhooks, lists, func(group string) bool {
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
		scopeUnserved.With(u.labels()).Set(1)
		m.options.Logger.Warnw("no admission comes to a webhook for a resource of its scope: "+u.why,
			"webhook", u.webhook, "extensions", u.extensions, "field", u.field, "resource", u.resource)
		m.event("NotServed", fmt.Sprintf("webhook %s (%s): Scope.%s: %s", u.webhook, u.extensions, u.field, u.why))
	}
	for u := range known {
		if !slices.Contains(found, u) {
			delete(known, u)
			scopeUnserved.Delete(u.labels())
			m.options.Logger.Infow("the API server serves the resource now", "webhook", u.webhook, "extensions", u.extensions, "resource", u.resource)
		}
	}
	return found, err
}

func (u unserved) labels() prometheus.Labels {
	return prometheus.Labels{"webhook": u.webhook, "resource": u.resource}
}

// unservedOf returns what the scopes name and discovery does not have. hidden reports
// whether discovery has failed for a group.
func unservedOf(webhooks []*webhook.Webhook, lists []*metav1.APIResourceList, hidden func(group string) bool) []unserved {
	var all []unserved
	for _, w := range webhooks {
		for i, rule := range w.Scope.Rules {
			if !namesResources(rule) || slices.ContainsFunc(rule.APIGroups, hidden) {
				continue
			}
			for _, resource := range rule.Resources {
				why := whyUnserved(rule, resource, lists)
				if why == "" {
					continue
				}
				all = append(all, unserved{
					webhook: w.Name, field: fmt.Sprintf("Rules[%d]", i), resource: joined(rule.APIGroups, resource), why: why,
					extensions: strings.Join(extensionsOf(w), ", "),
				})
			}
		}
	}
	return all
}

// namesResources reports whether a rule names groups and a resource. What has a wildcard
// takes what there is.
func namesResources(rule admissionregistrationv1.RuleWithOperations) bool {
	return !slices.Contains(rule.APIGroups, "*") && !slices.Contains(rule.Resources, "*") && !slices.Contains(rule.Resources, "*/*")
}

// extensionsOf returns the names of the extensions in a webhook.
func extensionsOf(w *webhook.Webhook) []string {
	names := make([]string, len(w.Handlers))
	for i, h := range w.Handlers {
		names[i] = host.Open(h).Name
	}
	return names
}

func joined(groups []string, resource string) string {
	return strings.TrimPrefix(strings.Join(groups, ",")+"/"+resource, "/")
}

// whyUnserved returns why no request for a resource of a rule comes, "" if one may. One
// of its groups and versions is enough.
func whyUnserved(rule admissionregistrationv1.RuleWithOperations, resource string, lists []*metav1.APIResourceList) string {
	resource = strings.TrimSuffix(resource, "/*")
	if strings.HasPrefix(resource, "*") {
		return ""
	}
	why := fmt.Sprintf("the API server does not serve %s in version %s: is a CustomResourceDefinition missing, or is it the plural that is wrong?",
		joined(rule.APIGroups, resource), strings.Join(rule.APIVersions, ","))
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || !slices.Contains(rule.APIGroups, version.Group) || !slices.Contains(rule.APIVersions, version.Version) && !slices.Contains(rule.APIVersions, "*") {
			continue
		}
		for _, served := range list.APIResources {
			if served.Name != resource {
				continue
			}
			problem := neverAsked(rule, served)
			if problem == "" {
				return ""
			}
			why = problem
		}
	}
	return why
}

// neverAsked returns why a rule never matches a resource that is served.
func neverAsked(rule admissionregistrationv1.RuleWithOperations, served metav1.APIResource) string {
	if rule.Scope != nil && (*rule.Scope == admissionregistrationv1.ClusterScope && served.Namespaced || *rule.Scope == admissionregistrationv1.NamespacedScope && !served.Namespaced) {
		return fmt.Sprintf("scope %s never matches %s", *rule.Scope, served.Name)
	}
	verbs := map[admissionregistrationv1.OperationType][]string{
		admissionregistrationv1.Create: {"create"},
		admissionregistrationv1.Update: {"update", "patch"},
		admissionregistrationv1.Delete: {"delete", "deletecollection"},
	}
	if strings.Contains(served.Name, "/") {
		verbs[admissionregistrationv1.Connect] = []string{"create", "get"}
	}
	for _, operation := range rule.Operations {
		if operation == admissionregistrationv1.OperationAll || slices.ContainsFunc(verbs[operation], func(verb string) bool { return slices.Contains(served.Verbs, verb) }) {
			return ""
		}
	}
	return fmt.Sprintf("%v of %s never comes: its verbs are %v", rule.Operations, served.Name, []string(served.Verbs))
}
