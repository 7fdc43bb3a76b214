package enforce

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/kubelet"
)

// Label on a Namespace turns enforcement on: see audit.LabelEnforce.
const Label = "admitkit.dev/enforce-access"

// Entry is a scope, and whether enforcement is on in it.
type Entry struct {
	extension.Scope
	Enforced bool
}

// Entries divides the scope of sessions. Each admission still passes one webhook,
// once, with the right failure policy:
//
//	audit                 enforcement is off: the policy of recording
//	audit-enforced        enforcement is on: Fail
//	audit-exempt          enforcement is on, exempt users: the policy of recording
//	audit-enforced-nodes  nodes/proxy, possible sessions: Fail
//	audit-nodes           nodes/proxy, the rest and exempt users: the policy of recording
//
// Break-glass must work, and metrics must be scraped, while no replica runs. The last two
// are there only if sessions has nodes/proxy.
func (o *Options) Entries(sessions extension.Scope) []Entry {
	all, hasProxies := sessions.NamespaceSelector, covers(sessions.Rules, string(v1alpha1.WayNodeProxy))
	proxies := sessions
	sessions.Rules = Without(sessions.Rules, string(v1alpha1.WayNodeProxy))
	proxies.Rules = extension.Connect(string(v1alpha1.WayNodeProxy))

	off := sessions
	off.NamespaceSelector = o.selector(all, false)
	on := sessions
	on.NamespaceSelector = o.selector(all, true)
	isExempt := o.exemptExpression()
	isHarmless := fmt.Sprintf("(!has(object.path) || object.path.matches(r'%s'))", kubelet.HarmlessPath)
	entries := []Entry{
		{Scope: off},
		{Scope: o.failing(narrow(on, "audit-enforced", "not-exempt", "!("+isExempt+")")), Enforced: true},
	}
	if hasProxies {
		entries = append(entries,
			Entry{Scope: o.failing(narrow(proxies, "audit-enforced-nodes", "path-and-user", fmt.Sprintf("!%s && !(%s)", isHarmless, isExempt))), Enforced: true},
			Entry{Scope: narrow(proxies, "audit-nodes", "path-and-user", fmt.Sprintf("%s || (%s)", isHarmless, isExempt)), Enforced: true},
		)
	}
	if o.hasExempt() {
		entries = append(entries, Entry{Scope: narrow(on, "audit-exempt", "exempt", isExempt), Enforced: true})
	}
	return entries
}

// narrow returns a scope of another name with one more condition.
func narrow(scope extension.Scope, name, condition, expression string) extension.Scope {
	scope.Name = name
	scope.MatchConditions = append(slices.Clone(scope.MatchConditions), admissionregistrationv1.MatchCondition{Name: condition, Expression: expression})
	return scope
}

// failing returns a scope with the failure policy Fail, if something is refused.
func (o *Options) failing(scope extension.Scope) extension.Scope {
	if !o.Mode.Enforced() {
		return scope
	}
	fail := admissionregistrationv1.Fail
	scope.FailurePolicy = &fail
	return scope
}

// selector selects, among the namespaces of base, those in which enforcement is
// on, or those in which it is off.
func (o *Options) selector(base *metav1.LabelSelector, on bool) *metav1.LabelSelector {
	key, values, operator := Label, []string{"true"}, metav1.LabelSelectorOpIn
	if len(o.Namespaces) > 0 {
		key, values = corev1.LabelMetadataName, o.Namespaces
	}
	if !on {
		operator = metav1.LabelSelectorOpNotIn
	}
	selector := &metav1.LabelSelector{}
	if base != nil {
		selector = base.DeepCopy()
	}
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values})
	if on {
		// Enforcement applies to kube-system too, if it is on there: no cluster needs
		// a session to start.
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists})
	}
	return selector
}

// covers reports whether rules name a resource.
func covers(rules []admissionregistrationv1.RuleWithOperations, resource string) bool {
	return slices.ContainsFunc(rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
		return slices.Contains(rule.Resources, resource)
	})
}

// Without returns rules that do not cover a resource.
func Without(rules []admissionregistrationv1.RuleWithOperations, resource string) []admissionregistrationv1.RuleWithOperations {
	result := make([]admissionregistrationv1.RuleWithOperations, len(rules))
	for i, rule := range rules {
		result[i] = *rule.DeepCopy()
		result[i].Resources = slices.DeleteFunc(result[i].Resources, func(r string) bool { return r == resource })
	}
	return result
}
