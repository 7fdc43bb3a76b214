package scan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// Plan says what a scan reads.
type Plan struct {
	Passes []Pass
	// Left are the admissions that no stored object can stand for.
	Left []Left
}

// Pass is a resource in one version, and the webhooks that receive its objects so.
type Pass struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
	// HasStatus is true if the status is a subresource.
	HasStatus bool
	// Namespaces are those that are listed: one that is empty stands for all.
	Namespaces []string
	Webhooks   []*webhook.Webhook
}

// Left is what is not scanned, of an extension.
type Left struct {
	Extension string `json:"extension"`
	Reason    string `json:"reason"`
}

// scanned are the operations that a stored object can stand for.
var scanned = []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.OperationAll}

// PlanOf returns the plan of a scan by the resources that are served, of which the
// preferred version of each group comes first.
func PlanOf(webhooks []*webhook.Webhook, lists []*metav1.APIResourceList) *Plan {
	p := &Plan{}
	webhooks = apart(webhooks)
	resources := resourcesOf(lists)
	for _, versions := range resources {
		var passes []Pass
		for _, w := range webhooks {
			at := slices.IndexFunc(versions, func(v version) bool { return receives(w, v.resource) })
			if at < 0 || !isStored(versions[at].Verbs) {
				continue
			}
			if isReport(versions[at].resource) {
				p.Left = withLeft(p.Left, w, versions[at].resource.GroupResource().String()+": reports are what scans find, and there would be reports of reports")
				continue
			}
			v := versions[at]
			i := slices.IndexFunc(passes, func(pass Pass) bool { return pass.Resource == v.resource })
			if i < 0 {
				i = len(passes)
				passes = append(passes, Pass{Resource: v.resource, Kind: v.resource.GroupVersion().WithKind(v.Kind), HasStatus: v.hasStatus})
			}
			passes[i].Webhooks = append(passes[i].Webhooks, w)
		}
		for i := range passes {
			passes[i].Namespaces = namespacesOf(passes[i].Webhooks, versions[0].Namespaced)
		}
		p.Passes = append(p.Passes, passes...)
	}
	for _, w := range webhooks {
		for _, rule := range w.Scope.Rules {
			for _, reason := range unscanned(rule, resources) {
				p.Left = withLeft(p.Left, w, reason)
			}
		}
	}
	return p
}

// isStored reports whether a resource has objects that somebody writes: not those that an API
// server computes, such as metrics.
func isStored(verbs metav1.Verbs) bool {
	return slices.Contains(verbs, "list") && slices.ContainsFunc(verbs, func(v string) bool { return v == "create" || v == "update" || v == "patch" })
}

// apart has each validator in a webhook of its own, or the denial of one would keep the
// others from seeing the object.
func apart(webhooks []*webhook.Webhook) (all []*webhook.Webhook) {
	for _, w := range webhooks {
		if w.Mutating {
			all = append(all, w)
			continue
		}
		for _, handler := range w.Handlers {
			alone := *w
			alone.Handlers = append(alone.Handlers[:0:0], handler)
			all = append(all, &alone)
		}
	}
	return all
}

// version is a resource in a version.
type version struct {
	metav1.APIResource
	resource  schema.GroupVersionResource
	hasStatus bool
}

// resourcesOf returns the resources without their subresources, sorted, each in its versions,
// of which the preferred one comes first.
func resourcesOf(lists []*metav1.APIResourceList) [][]version {
	byName := map[schema.GroupResource][]version{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // no API server has such a one
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			at := gv.WithResource(r.Name)
			hasStatus := slices.ContainsFunc(list.APIResources, func(other metav1.APIResource) bool { return other.Name == r.Name+"/status" })
			byName[at.GroupResource()] = append(byName[at.GroupResource()], version{r, at, hasStatus})
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b []version) int {
		return cmp.Or(strings.Compare(a[0].resource.Group, b[0].resource.Group), strings.Compare(a[0].resource.Resource, b[0].resource.Resource))
	})
}

// receives reports whether a webhook receives the objects of a resource when they are created or
// updated.
func receives(w *webhook.Webhook, resource schema.GroupVersionResource) bool {
	return slices.ContainsFunc(w.Scope.Rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
		return slices.ContainsFunc(rule.Operations, func(o admissionregistrationv1.OperationType) bool { return slices.Contains(scanned, o) }) &&
			offline.Names(rule.Rule, resource, "")
	})
}

// namespacesOf returns the namespaces whose objects the webhooks may receive: those that all
// of them name, so that a scan needs no right in others, or all.
func namespacesOf(webhooks []*webhook.Webhook, namespaced bool) (all []string) {
	everywhere := []string{metav1.NamespaceAll}
	if !namespaced {
		return everywhere
	}
	for _, w := range webhooks {
		names, named := host.NamespacesOf(w.Scope.NamespaceSelector)
		if !named {
			return everywhere
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// unscanned returns what of a rule is not scanned.
func unscanned(rule admissionregistrationv1.RuleWithOperations, resources [][]version) (reasons []string) {
	for _, operation := range rule.Operations {
		if !slices.Contains(scanned, operation) {
			reasons = append(reasons, fmt.Sprintf("%s of %s: no stored object says who would ask for it, and when", operation, strings.Join(rule.Resources, ", ")))
		}
	}
	for _, pattern := range rule.Resources {
		name, subresource, _ := strings.Cut(pattern, "/")
		one := rule.Rule
		one.Resources = []string{name}
		switch {
		case subresource == "" || subresource == "*":
			if name != "*" && !slices.ContainsFunc(slices.Concat(resources...), func(v version) bool { return offline.Names(one, v.resource, "") }) {
				reasons = append(reasons, fmt.Sprintf("%s: the API server serves no such resource in group %q", name, strings.Join(rule.APIGroups, ", ")))
			}
		case !slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Connect}):
			reasons = append(reasons, pattern+": requests to a subresource are not stored")
		}
	}
	return reasons
}

// withLeft adds a reason for the extensions of a webhook, unless it is there.
func withLeft(all []Left, w *webhook.Webhook, reason string) []Left {
	for _, name := range w.Extensions() {
		if l := (Left{name, reason}); !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	return all
}
