package manifests

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

// OfScans ends the fingerprint of what scans, and so the name of its Lease.
const OfScans = "-scan"

// addScanner adds what scans, with the right to read what the webhooks receive and what the
// extensions read. It may write its Lease and Reports, and nothing else.
func (i *installer) addScanner() error {
	name := i.Name + "-scanner"
	i.addServiceAccount(name)
	rights := i.Parts.ServerRights()
	rights.Watched, rights.Cluster = reading(rights.Watched), reading(rights.Cluster)
	for namespace, rules := range rights.Namespaces {
		rights.Namespaces[namespace] = reading(rules)
	}
	rights.Aggregates = nil // they may be rights to write
	for _, w := range i.Webhooks {
		i.addScanned(w, &rights)
	}
	args := []string{"scan", "--every=" + i.Scan.Every.String()}
	if i.Scan.Reports {
		args = append(args, "--reports")
		verbs := []string{"list", "create", "patch", "delete"}
		rights.Cluster = append(rights.Cluster, rule("openreports.io", []string{"reports", "clusterreports"}, verbs), rule("wgpolicyk8s.io", []string{"policyreports", "clusterpolicyreports"}, verbs))
	}
	if err := i.addRights(name, host.Serves, rights, nil); err != nil {
		return err
	}
	i.addLease(name, i.ScanLease)
	deployment := i.deployment(name, 1, args...)
	deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	i.observe(&deployment.Spec.Template.Spec.Containers[0])
	i.add(deployment)
	return nil
}

// reading returns the part of rules that changes nothing. To create a review, such as a
// SubjectAccessReview, is to ask.
func reading(rules []rbacv1.PolicyRule) (all []rbacv1.PolicyRule) {
	for _, r := range rules {
		writes := slices.ContainsFunc(r.Resources, func(resource string) bool { return !strings.HasSuffix(resource, "reviews") })
		r.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(verb string) bool {
			return !slices.Contains([]string{"get", "list", "watch"}, verb) && (verb != "create" || writes)
		})
		if len(r.Verbs) > 0 {
			all = append(all, r)
		}
	}
	return all
}

// addScanned adds the right to list what a webhook receives: in the namespaces that its
// selector names, or everywhere.
func (i *installer) addScanned(w *webhook.Webhook, rights *host.Rights) {
	names, named := host.NamespacesOf(w.Scope.NamespaceSelector)
	if selector := w.Scope.NamespaceSelector; selector != nil {
		ofName := func(r metav1.LabelSelectorRequirement) bool { return r.Key == corev1.LabelMetadataName }
		if len(selector.MatchLabels) > 0 || len(slices.DeleteFunc(slices.Clone(selector.MatchExpressions), ofName)) > 0 {
			rights.Cluster = host.AppendNew(rights.Cluster, rule("", []string{"namespaces"}, []string{"get", "list"}))
		}
	}
	for _, r := range w.Scope.Rules {
		var resources []string
		for _, pattern := range r.Resources {
			if resource, subresource, _ := strings.Cut(pattern, "/"); subresource == "" || subresource == "*" {
				resources = append(resources, resource)
			}
		}
		for _, group := range r.APIGroups {
			stored := slices.DeleteFunc(slices.Clone(resources), func(resource string) bool { return group == "" && resource == "bindings" })
			if len(stored) == 0 {
				continue
			}
			may := rule(group, stored, []string{"list"})
			if !named || i.mayBeClustered(group, stored) {
				rights.Cluster = host.AppendNew(rights.Cluster, may)
				continue
			}
			for _, namespace := range names {
				rights.Namespaces[namespace] = host.AppendNew(rights.Namespaces[namespace], may)
			}
		}
	}
}

// mayBeClustered reports whether a resource is, or may be, one without namespaces.
func (i *installer) mayBeClustered(group string, resources []string) bool {
	return slices.ContainsFunc(resources, func(resource string) bool {
		kind, known := i.kinds.Of(schema.GroupResource{Group: group, Resource: resource})
		return !known || !i.kinds.Namespaced(kind.GroupKind())
	})
}
