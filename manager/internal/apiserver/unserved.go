package apiserver

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/webhook"
)

// Unserved is a resource in the scope of a webhook for which no admission comes.
type Unserved struct {
	Webhook, Field, Resource, Why string
	// Extensions are those in the webhook.
	Extensions string
}

// UnservedIn returns what the scopes name and discovery does not have. hidden reports
// whether discovery has failed for a group.
func UnservedIn(webhooks []*webhook.Webhook, lists []*metav1.APIResourceList, hidden func(group string) bool) []Unserved {
	var all []Unserved
	for _, w := range webhooks {
		for i, rule := range w.Scope.Rules {
			if !NamesResources(rule) || slices.ContainsFunc(rule.APIGroups, hidden) {
				continue
			}
			for _, resource := range rule.Resources {
				why := whyUnserved(rule, resource, lists)
				if why == "" {
					continue
				}
				all = append(all, Unserved{
					Webhook: w.Name, Field: fmt.Sprintf("Rules[%d]", i), Resource: joined(rule.APIGroups, resource), Why: why,
					Extensions: strings.Join(w.Extensions(), ", "),
				})
			}
		}
	}
	return all
}

// NamesResources reports whether a rule names its groups and resources. One with a wildcard
// applies to whatever the API server serves.
func NamesResources(rule admissionregistrationv1.RuleWithOperations) bool {
	return !slices.Contains(rule.APIGroups, "*") && !slices.Contains(rule.Resources, "*") && !slices.Contains(rule.Resources, "*/*")
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
