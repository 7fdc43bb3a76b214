package offline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/deadlock"
	"github.com/admitkit/admitkit/internal/kinds"
)

// Why says why an API server does not call a webhook with this scope for the request. It
// is for a request that does not match; see [Request.Matches].
func (r *Request) Why(scope extension.Scope) string {
	r = r.namedBy(scope.Rules)
	if r.isExempt() {
		return "API servers call no webhook for a " + r.Kind.Kind
	}
	if r.ruled(scope) == no {
		return fmt.Sprintf("its rules name %s; this is %s", describe(scope.Rules), r.what())
	}
	if in, err := r.inNamespace(scope.NamespaceSelector); err == nil && in == no {
		set, _, _ := r.namespaceLabels()
		return fmt.Sprintf("its NamespaceSelector is %s; the namespace has %s", metav1.FormatLabelSelector(scope.NamespaceSelector), set)
	}
	if selected, err := r.selected(scope.ObjectSelector); err == nil && !selected {
		if r.Operation == admissionv1.Connect {
			return "it has an ObjectSelector, and the options of a connection have no labels"
		}
		return fmt.Sprintf("its ObjectSelector is %s, and the object has other labels", metav1.FormatLabelSelector(scope.ObjectSelector))
	}
	conditions, err := r.conditions(scope, r.ruled(scope))
	if failed, fails := errors.AsType[*Failed](err); fails {
		return fmt.Sprintf("a match condition failed, and its failure policy is Fail: %v", failed.Err)
	}
	switch guard := r.guard(scope); {
	case err != nil || conditions.answer != no:
	case conditions.false == deadlock.ConditionName && guard != nil:
		return fmt.Sprintf("failure policy Fail leaves this out of rules with a wildcard: while the webhook is down, %s; a rule that is to have it names the resource", guard.Breaks)
	case conditions.false == "":
		return fmt.Sprintf("a match condition failed, and its failure policy is Ignore: %v", conditions.ignored)
	default:
		how := ""
		if _, given := r.MatchConditions[conditions.false]; given {
			how = ", as given"
		}
		return fmt.Sprintf("its match condition %s is false%s", conditions.false, how)
	}
	return "it does not match"
}

// what describes the request in the words of a rule.
func (r *Request) what() string {
	resource := strings.TrimSuffix(r.Resource.Resource+"/"+r.SubResource, "/")
	text := fmt.Sprintf("%s of %s %s", r.Operation, r.Resource.GroupVersion(), resource)
	if r.Namespace == "" || kinds.IsNamespace(r.Kind) {
		text += ", which has no namespace"
	}
	if !r.known {
		text += " (a guess, for its kind is not one of Kubernetes: its CustomResourceDefinition has the resource)"
	}
	return text
}

// describe writes rules in a sentence.
func describe(rules []admissionregistrationv1.RuleWithOperations) string {
	texts := make([]string, len(rules))
	for i, rule := range rules {
		operations := make([]string, len(rule.Operations))
		for j, operation := range rule.Operations {
			operations[j] = string(operation)
		}
		var versions []string
		for _, group := range rule.APIGroups {
			for _, version := range rule.APIVersions {
				versions = append(versions, schema.GroupVersion{Group: group, Version: version}.String())
			}
		}
		texts[i] = fmt.Sprintf("%s of %s %s", strings.Join(operations, ","), strings.Join(versions, ","), strings.Join(rule.Resources, ","))
		if rule.Scope != nil && *rule.Scope != admissionregistrationv1.AllScopes {
			texts[i] += fmt.Sprintf(" (scope %s)", *rule.Scope)
		}
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), " and ")
}
