package webhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/deadlock"
	"github.com/admitkit/admitkit/internal/host"
)

// The range in which the API server accepts a timeout, and what it defaults to.
const (
	defaultTimeout = 10 * time.Second
	minTimeout     = time.Second
	maxTimeout     = 30 * time.Second
)

// resolve fills in the defaults and checks what the API server would refuse
// later, with a less helpful message.
func resolve(h *host.Handler, defaults Defaults) (extension.Scope, error) {
	s := h.Scope
	if s.Name != "" {
		if problems := validation.IsDNS1123Label(s.Name); len(problems) > 0 {
			return s, fmt.Errorf("Name: %q: %s", s.Name, strings.Join(problems, ", "))
		}
	}
	s = withDefaults(s, defaults)
	if err := checkRules(h, s.Rules); err != nil {
		return s, err
	}
	if err := errors.Join(checkSelectors(h.Scope), checkMode(h.Scope), checkReinvocation(h, h.Scope)); err != nil {
		return s, err
	}
	if err := checkMatching(h.Scope); err != nil {
		return s, err
	}
	if i := slices.IndexFunc(defaults.Excluded, func(name string) bool { return named(s.NamespaceSelector, name) }); i >= 0 {
		return s, fmt.Errorf("NamespaceSelector: names %s, which Registration.ExcludeNamespaces excludes from every webhook: remove it from one of them", defaults.Excluded[i])
	}
	if err := checkPolicies(s); err != nil {
		return s, err
	}
	if s.Timeout < minTimeout || s.Timeout > maxTimeout || s.Timeout%time.Second != 0 {
		return s, fmt.Errorf("Timeout: %s: must be whole seconds from %s to %s", s.Timeout, minTimeout, maxTimeout)
	}
	return s, nil
}

// checkPolicies returns an error for a value that Kubernetes does not have.
func checkPolicies(s extension.Scope) error {
	switch {
	case *s.FailurePolicy != admissionregistrationv1.Fail && *s.FailurePolicy != admissionregistrationv1.Ignore:
		return fmt.Errorf("FailurePolicy: %q: must be Fail or Ignore", *s.FailurePolicy)
	case *s.MatchPolicy != admissionregistrationv1.Equivalent && *s.MatchPolicy != admissionregistrationv1.Exact:
		return fmt.Errorf("MatchPolicy: %q: must be Equivalent or Exact", *s.MatchPolicy)
	case *s.ReinvocationPolicy != admissionregistrationv1.NeverReinvocationPolicy && *s.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy:
		return fmt.Errorf("ReinvocationPolicy: %q: must be Never or IfNeeded", *s.ReinvocationPolicy)
	case *s.SideEffects != admissionregistrationv1.SideEffectClassNone && *s.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun:
		return fmt.Errorf("SideEffects: %q: admissionregistration.k8s.io/v1 accepts None and NoneOnDryRun", *s.SideEffects)
	}
	return nil
}

// checkMatching returns an error for a scope that an API server accepts, and whose requests
// it then all lets pass, or refuses, without a call.
func checkMatching(s extension.Scope) error {
	if i := unreachable(s); i >= 0 {
		return fmt.Errorf("ObjectSelector: Rules[%d] would never match: a CONNECT carries options, which have no labels, and so the API server "+
			"calls no webhook with an ObjectSelector for it, not even with DoesNotExist or NotIn. Leave it out, and read the labels of the Pod in "+
			"the handler; other operations that need it take a scope of their own", i)
	}
	if i := namespaceCondition(s); i >= 0 {
		return fmt.Errorf("MatchConditions[%d]: namespaceObject is always null in the match condition of a webhook, although API servers accept it, "+
			"and they would refuse each request: use the NamespaceSelector", i)
	}
	return nil
}

func checkSelectors(s extension.Scope) error {
	for field, selector := range map[string]*metav1.LabelSelector{"ObjectSelector": s.ObjectSelector, "NamespaceSelector": s.NamespaceSelector} {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			return fmt.Errorf("%s: %w%s", field, err, operatorsOf(selector))
		}
	}
	return checkNames(s.NamespaceSelector)
}

// operatorsOf names the operators if a selector has another one.
func operatorsOf(selector *metav1.LabelSelector) string {
	for _, r := range selector.MatchExpressions {
		if _, known := opposite[r.Operator]; !known {
			return ": must be In, NotIn, Exists or DoesNotExist"
		}
	}
	return ""
}

// unreachable returns the first rule that names CONNECT in a scope whose
// ObjectSelector excludes all of them, or -1. A guard of exec would be registered,
// and never asked (k8s.io/apiserver, predicates/object: no metadata, no match).
func unreachable(s extension.Scope) int {
	selector, err := metav1.LabelSelectorAsSelector(s.ObjectSelector)
	if s.ObjectSelector == nil || err != nil || selector.Empty() {
		return -1
	}
	return slices.IndexFunc(s.Rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
		return slices.Contains(rule.Operations, admissionregistrationv1.Connect)
	})
}

var (
	celText         = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	namespaceObject = regexp.MustCompile(`(^|[^.\w])namespaceObject\b`)
)

// namespaceCondition returns the first match condition that uses namespaceObject, or -1.
// API servers compile it as for a ValidatingAdmissionPolicy, and never set it
// (k8s.io/apiserver, pkg/admission/plugin/webhook/matchconditions/matcher.go).
func namespaceCondition(s extension.Scope) int {
	return slices.IndexFunc(s.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool {
		return namespaceObject.MatchString(celText.ReplaceAllString(c.Expression, `""`))
	})
}

// withDefaults fills in what a scope leaves open.
func withDefaults(s extension.Scope, defaults Defaults) extension.Scope {
	if len(s.Rules) == 0 {
		s.Rules = extension.Pods()
	}
	if s.FailurePolicy == nil {
		s.FailurePolicy = new(cmp.Or(defaults.FailurePolicy, admissionregistrationv1.Fail))
	}
	if s.SideEffects == nil {
		s.SideEffects = new(admissionregistrationv1.SideEffectClassNone)
	}
	if s.Timeout == 0 {
		s.Timeout = defaultTimeout
	}
	if s.MatchPolicy == nil {
		s.MatchPolicy = new(admissionregistrationv1.Equivalent)
	}
	if s.ReinvocationPolicy == nil {
		s.ReinvocationPolicy = new(admissionregistrationv1.NeverReinvocationPolicy)
	}
	if s.ObjectSelector == nil && onlyPods(s.Rules...) {
		s.ObjectSelector = defaults.PodSelector
	}
	s.NamespaceSelector = namespaceSelector(s, defaults)
	if condition, needed := deadlock.Condition(s.Rules); needed && *s.FailurePolicy == admissionregistrationv1.Fail {
		// The last, so that the API server's errors count the author's as the author does.
		s.MatchConditions = append(slices.Clone(s.MatchConditions), condition)
	}
	return s
}

// namespaceSelector selects by kubernetes.io/metadata.name, a label that the API
// server sets on every namespace and lets nobody change. A label of our own would
// need the right to write namespaces, could be removed to escape admission, and
// would remain after an uninstall.
func namespaceSelector(s extension.Scope, defaults Defaults) *metav1.LabelSelector {
	if s.NamespaceSelector == nil && len(defaults.Namespaces) > 0 {
		return extension.InNamespaces(defaults.Namespaces...)
	}
	selector := &metav1.LabelSelector{}
	if s.NamespaceSelector != nil {
		selector = s.NamespaceSelector.DeepCopy()
	}
	var without []string
	if *s.FailurePolicy == admissionregistrationv1.Fail {
		without = slices.Clone(defaults.Protected)
	}
	for _, name := range defaults.Excluded {
		if !slices.Contains(without, name) {
			without = append(without, name)
		}
	}
	if len(without) > 0 && !namesNamespace(selector) {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: without,
		})
	}
	return selector
}

// named reports whether a selector names this namespace.
func named(selector *metav1.LabelSelector, namespace string) bool {
	return selector.MatchLabels[corev1.LabelMetadataName] == namespace ||
		slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
			return r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpIn && slices.Contains(r.Values, namespace)
		})
}

// namesNamespace reports whether a selector selects namespaces by name: some of
// them, or all that have a name.
func namesNamespace(selector *metav1.LabelSelector) bool {
	if _, found := selector.MatchLabels[corev1.LabelMetadataName]; found {
		return true
	}
	return slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key == corev1.LabelMetadataName && (r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpExists)
	})
}

// podResources are the resources whose admission carries a Pod.
var podResources = []string{"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"}

func onlyPods(rules ...admissionregistrationv1.RuleWithOperations) bool {
	for _, rule := range rules {
		if !slices.Equal(rule.APIGroups, []string{""}) {
			return false
		}
		for _, resource := range rule.Resources {
			if !slices.Contains(podResources, resource) {
				return false
			}
		}
	}
	return true
}

// contentName names a scope that has no name: its first resource, for people, and a
// digest of the whole scope, so that all processes give equal scopes the same name.
func contentName(s extension.Scope, content []byte) string {
	digest := sha256.Sum256(content)
	suffix := hex.EncodeToString(digest[:4])
	about := strings.NewReplacer("/", "-", "*", "all", ".", "-").Replace(strings.ToLower(s.Rules[0].Resources[0]))
	if limit := validation.DNS1123LabelMaxLength - len(suffix) - 1; len(about) > limit {
		about = about[:limit]
	}
	return strings.Trim(about, "-") + "-" + suffix
}
