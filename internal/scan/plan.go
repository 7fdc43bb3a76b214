package scan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/host"
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
	for _, served := range resourcesOf(lists) {
		var passes []Pass
		for _, w := range webhooks {
			at := slices.IndexFunc(served.versions, func(v version) bool { return receives(w, served.group, v) })
			if at < 0 {
				continue
			}
			v := served.versions[at]
			if !slices.Contains(v.Verbs, "list") {
				continue // nothing is stored
			}
			i := slices.IndexFunc(passes, func(pass Pass) bool { return pass.Resource.Version == v.version })
			if i < 0 {
				i = len(passes)
				gv := schema.GroupVersion{Group: served.group, Version: v.version}
				passes = append(passes, Pass{Resource: gv.WithResource(v.Name), Kind: gv.WithKind(v.Kind), HasStatus: v.hasStatus})
			}
			passes[i].Webhooks = append(passes[i].Webhooks, w)
		}
		for i := range passes {
			passes[i].Namespaces = namespacesOf(passes[i].Webhooks, served.versions[0].Namespaced)
		}
		p.Passes = append(p.Passes, passes...)
	}
	p.Left = left(webhooks, lists)
	return p
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
	version   string
	hasStatus bool
}

// resource is a resource in its versions, the preferred one first.
type resource struct {
	group    string
	versions []version
}

// resourcesOf returns the resources without their subresources, sorted.
func resourcesOf(lists []*metav1.APIResourceList) []*resource {
	byName := map[schema.GroupResource]*resource{}
	var all []*resource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // no API server has such a one
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			name := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			if byName[name] == nil {
				byName[name] = &resource{group: gv.Group}
				all = append(all, byName[name])
			}
			hasStatus := slices.ContainsFunc(list.APIResources, func(other metav1.APIResource) bool { return other.Name == r.Name+"/status" })
			byName[name].versions = append(byName[name].versions, version{r, gv.Version, hasStatus})
		}
	}
	slices.SortStableFunc(all, func(a, b *resource) int {
		return cmp.Or(strings.Compare(a.group, b.group), strings.Compare(a.versions[0].Name, b.versions[0].Name))
	})
	return all
}

// receives reports whether a webhook receives the objects of a resource in a version, when
// they are created or updated.
func receives(w *webhook.Webhook, group string, v version) bool {
	return slices.ContainsFunc(w.Scope.Rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
		return slices.ContainsFunc(rule.Operations, func(o admissionregistrationv1.OperationType) bool { return slices.Contains(scanned, o) }) &&
			has(rule.APIGroups, group) && has(rule.APIVersions, v.version) && slices.ContainsFunc(rule.Resources, func(pattern string) bool {
			name, subresource, _ := strings.Cut(pattern, "/")
			return (name == "*" || name == v.Name) && (subresource == "" || subresource == "*")
		})
	})
}

func has(values []string, value string) bool {
	return slices.Contains(values, "*") || slices.Contains(values, value)
}

// namespacesOf returns the namespaces whose objects the webhooks may receive: those that all
// of them name, so that a scan needs no right in others, or all.
func namespacesOf(webhooks []*webhook.Webhook, namespaced bool) (all []string) {
	everywhere := []string{metav1.NamespaceAll}
	if !namespaced {
		return everywhere
	}
	for _, w := range webhooks {
		names, named := []string(nil), false
		if w.Scope.NamespaceSelector != nil {
			names, named = host.NamespacesOf(w.Scope.NamespaceSelector)
		}
		if !named {
			return everywhere
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// left returns what of the rules is not scanned.
func left(webhooks []*webhook.Webhook, lists []*metav1.APIResourceList) (all []Left) {
	add := func(w *webhook.Webhook, format string, args ...any) {
		for _, name := range w.Extensions() {
			l := Left{name, fmt.Sprintf(format, args...)}
			if !slices.Contains(all, l) {
				all = append(all, l)
			}
		}
	}
	resources := resourcesOf(lists)
	for _, w := range webhooks {
		for _, rule := range w.Scope.Rules {
			for _, operation := range rule.Operations {
				if !slices.Contains(scanned, operation) {
					add(w, "%s of %s: no stored object says who would ask for it, and when", operation, strings.Join(rule.Resources, ", "))
				}
			}
			for _, pattern := range rule.Resources {
				name, subresource, _ := strings.Cut(pattern, "/")
				switch {
				case subresource != "" && subresource != "*":
					if !slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Connect}) {
						add(w, "%s: requests to a subresource are not stored", pattern)
					}
				case name != "*" && !slices.ContainsFunc(resources, func(r *resource) bool {
					return has(rule.APIGroups, r.group) && slices.ContainsFunc(r.versions, func(v version) bool { return v.Name == name && has(rule.APIVersions, v.version) })
				}):
					add(w, "%s: the API server serves no such resource in group %q", name, strings.Join(rule.APIGroups, ", "))
				}
			}
		}
	}
	return all
}
