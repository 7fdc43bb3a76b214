package webhook

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// checkRules returns an error for rules that an API server refuses, or takes although no request
// can match them.
func checkRules(h *host.Handler, rules []admissionregistrationv1.RuleWithOperations) error {
	for i, rule := range rules {
		if len(rule.Operations) == 0 || len(rule.Resources) == 0 || len(rule.APIGroups) == 0 || len(rule.APIVersions) == 0 {
			return fmt.Errorf("Rules[%d]: needs operations, API groups, API versions and resources", i)
		}
		if h.Respond != nil && !onlyPods(rule) {
			return fmt.Errorf("Rules[%d]: an Extension takes Pods, not %s; use a Mutator or a Validator", i, strings.Join(rule.Resources, ", "))
		}
		if err := checkRule(rule); err != nil {
			return fmt.Errorf("Rules[%d].%w", i, err)
		}
	}
	return nil
}

func checkRule(rule admissionregistrationv1.RuleWithOperations) error {
	operations := []admissionregistrationv1.OperationType{"CREATE", "UPDATE", "DELETE", "CONNECT"}
	scopes := []admissionregistrationv1.ScopeType{admissionregistrationv1.NamespacedScope, admissionregistrationv1.ClusterScope, admissionregistrationv1.AllScopes}
	if rule.Scope != nil && !slices.Contains(scopes, *rule.Scope) {
		return fmt.Errorf("Scope: %q: must be Namespaced, Cluster or *", *rule.Scope)
	}
	return errors.Join(
		each("Operations", rule.Operations, func(o admissionregistrationv1.OperationType) bool { return slices.Contains(operations, o) }, "must be CREATE, UPDATE, DELETE, CONNECT or *"),
		each("APIGroups", rule.APIGroups, func(group string) bool { return !strings.Contains(group, "/") }, "must be a group without a version"),
		each("APIVersions", rule.APIVersions, func(version string) bool { return len(validation.IsDNS1035Label(version)) == 0 }, "must be a version, such as v1"),
		checkResources(rule.Resources))
}

// each returns an error for a value that is not valid, and for * beside other values.
func each[T ~string](field string, values []T, valid func(T) bool, must string) error {
	for _, value := range values {
		if value == "*" && len(values) > 1 {
			return fmt.Errorf("%s: %q is all of them: leave the others out", field, value)
		}
		if value != "*" && !valid(value) {
			return fmt.Errorf("%s: %q: %s", field, value, must)
		}
	}
	return nil
}

// checkResources follows the validation by an API server: * is every resource without its
// subresources, and */* with them.
func checkResources(resources []string) error {
	whole := slices.DeleteFunc(slices.Clone(resources), func(r string) bool { return strings.Contains(r, "/") })
	for _, r := range resources {
		if r == "*/*" && len(resources) > 1 || r == "*" && len(whole) > 1 {
			return fmt.Errorf("Resources: %q is all of them: leave the others out", r)
		}
		if r == "" || r != strings.ToLower(r) {
			return fmt.Errorf("Resources: %q: must be the plural in lower case, as in the URL", r)
		}
	}
	return nil
}

// checkNames returns an error for a selector by a name that no namespace can have.
func checkNames(selector *metav1.LabelSelector) error {
	if selector == nil {
		return nil
	}
	var names []string
	if name, has := selector.MatchLabels[corev1.LabelMetadataName]; has {
		names = append(names, name)
	}
	for _, r := range selector.MatchExpressions {
		if r.Key == corev1.LabelMetadataName {
			names = append(names, r.Values...)
		}
	}
	for _, name := range names {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("NamespaceSelector: %q is no name of a namespace: %s", name, strings.Join(problems, ", "))
		}
	}
	return nil
}

// checkReinvocation returns an error for a policy that a validating webhook does not have.
func checkReinvocation(h *host.Handler, s extension.Scope) error {
	if !h.Mutates && s.ReinvocationPolicy != nil && *s.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy {
		return errors.New("ReinvocationPolicy: API servers never reinvoke a Validator: leave it out")
	}
	return nil
}
