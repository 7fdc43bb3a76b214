package sandbox

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
)

var (
	_ extension.NamespaceEntitled = (*runs)(nil)
	_ extension.ClusterEntitled   = (*runs)(nil)
)

var coreGroup, ourGroup = []string{""}, []string{v1alpha1.GroupVersion.Group}

var rule = controller.Rule

// each returns the rules in each namespace in which runs run.
func (s *shared) each(rules ...rbacv1.PolicyRule) map[string][]rbacv1.PolicyRule {
	rights := make(map[string][]rbacv1.PolicyRule, len(s.namespaces))
	for _, namespace := range s.namespaces {
		rights[namespace] = rules
	}
	return rights
}

// NamespaceRights implements [extension.NamespaceEntitled]: what a run takes, where runs run. It makes Secrets for
// prompts, and reads those of others with proxies alone.
func (r *runs) NamespaceRights() map[string][]rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{
		rule(ourGroup, []string{"sandboxruntemplates"}, "get", "list", "watch"),
		rule(ourGroup, []string{"sandboxruns"}, "get", "list", "watch", "patch", "delete"),
		rule(ourGroup, []string{"sandboxruns/status"}, "patch"),
		// OwnerReferencesPermissionEnforcement wants it of who makes what a run owns.
		rule(ourGroup, []string{"sandboxruns/finalizers"}, "update"),
		rule([]string{batchv1.GroupName}, []string{"jobs"}, "get", "list", "watch", "create", "delete"),
		rule(coreGroup, []string{"pods"}, "get", "list", "watch", "delete"), // whose Job somebody deleted
		rule(coreGroup, []string{"pods/log"}, "get"),
		rule(coreGroup, []string{"secrets"}, "create"),
		rule([]string{"authorization.k8s.io"}, []string{"localsubjectaccessreviews"}, "create"), // about authors of prompts
		rule(ourGroup, []string{"workspaces"}, "get", "list", "watch"),
		rule([]string{"events.k8s.io"}, []string{"events"}, "create", "patch"),
		rule(coreGroup, []string{"events"}, "list"), // of Jobs whose Pod is refused
	}
	rights := r.each(append(rules, r.options.Egress.Rights()...)...)
	for _, rules := range []map[string][]rbacv1.PolicyRule{r.options.Egress.RightsElsewhere(), r.toProxies(), r.toBroker()} {
		for namespace, more := range rules {
			rights[namespace] = append(slices.Clone(rights[namespace]), more...)
		}
	}
	return rights
}

// ClusterRights implements [extension.ClusterEntitled].
func (r *runs) ClusterRights() []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{rule(ourGroup, []string{"clustersandboxruntemplates"}, "get", "list", "watch")}
	if r.options.Interactive { // AuditEvents have no namespace
		rules = append(rules, rule(ourGroup, []string{"auditevents"}, "list"))
	}
	if r.options.Proxy.on() { // Pod Security is a matter of the namespace's labels
		rules = append(rules, named(rule(coreGroup, []string{"namespaces"}, "get"), r.namespaces...))
	}
	return rules
}

func named(rule rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
	rule.ResourceNames = names
	return rule
}

// toProxies are the rights to have runs and seeds with proxies. Each has an authority of its own, in a Secret.
func (r *runs) toProxies() map[string][]rbacv1.PolicyRule {
	rights := r.each(rule(ourGroup, []string{"brokerpolicies"}, "get", "list", "watch"))
	if !r.options.Proxy.on() {
		return rights
	}
	for namespace := range rights {
		rights[namespace] = append(rights[namespace], rule(coreGroup, []string{"secrets"}, "get", "update", "delete"))
	}
	rights[r.own] = append(rights[r.own], named(rule(coreGroup, []string{"secrets"}, "get", "update"), credentials.RootName))
	if ca := r.options.Proxy.UpstreamCA; ca != "" {
		rights[r.own] = append(rights[r.own], named(rule(coreGroup, []string{"configmaps"}, "get"), ca))
	}
	return rights
}

// toBroker are the rights to have credentials lent.
func (r *runs) toBroker() map[string][]rbacv1.PolicyRule {
	b, rights := &r.options.Broker, map[string][]rbacv1.PolicyRule{}
	if !b.on() {
		return rights
	}
	rights[r.own] = append(rights[r.own], named(rule(coreGroup, []string{"serviceaccounts/token"}, "create"), b.ServiceAccount))
	// An uninstall has the broker revoke what is left, as the reconcilers can ask it to at any time.
	rights[b.Namespace] = append(rights[b.Namespace], rule(ourGroup, []string{"credentialleases"}, "list", "delete"))
	if b.CAFile == "" {
		rights[b.Namespace] = append(rights[b.Namespace], named(rule(coreGroup, []string{"configmaps"}, "get"), protocol.CAName))
	}
	return rights
}
