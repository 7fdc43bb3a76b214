package audit

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// entry is a scope of the auditor, and whether enforcement is on in it.
type entry struct {
	extension.Scope
	enforced bool
}

// entries divides the scope of sessions, so that each admission still reaches the
// auditor by one webhook, once, with the failure policy that is right for it:
//
//	audit                 where enforcement is off: the policy of recording
//	audit-enforced        where it is on: Fail
//	audit-exempt          where it is on, for exempt users: the policy of recording
//	audit-enforced-nodes  nodes/proxy, what may be a session: Fail
//	audit-nodes           nodes/proxy, the rest, and exempt users: the policy of recording
//
// Break-glass that fails while no replica runs would be none, and metrics must
// not be lost for it.
func (e *Enforcement) entries(sessions extension.Scope) []entry {
	fail := admissionregistrationv1.Fail
	proxy := string(v1alpha1.WayNodeProxy)
	base := sessions.NamespaceSelector
	sessions.Rules = without(sessions.Rules, proxy)
	scope := func(name string, on bool, conditions ...admissionregistrationv1.MatchCondition) extension.Scope {
		s := sessions
		s.Name, s.NamespaceSelector, s.MatchConditions = name, e.selector(base, on), slices.Concat(sessions.MatchConditions, conditions)
		return s
	}
	enforcing, lenient := scope("audit-enforced", true, e.exemptCondition(false)...), scope("audit-exempt", true, e.exemptCondition(true)...)
	enforcing.FailurePolicy = &fail
	nodes := func(name, expression string) extension.Scope {
		s := sessions
		s.Name, s.Rules = name, extension.Connect(proxy)
		s.MatchConditions = append(slices.Clone(sessions.MatchConditions), admissionregistrationv1.MatchCondition{Name: "path-and-user", Expression: expression})
		return s
	}
	isHarmless := fmt.Sprintf("(!has(object.path) || object.path.matches(r'%s'))", harmlessPath)
	strict := nodes("audit-enforced-nodes", fmt.Sprintf("!%s && !(%s)", isHarmless, e.exemptExpression()))
	strict.FailurePolicy = &fail
	entries := []entry{
		{Scope: scope(sessions.Name, false)},
		{Scope: enforcing, enforced: true},
		{Scope: strict, enforced: true},
		{Scope: nodes("audit-nodes", fmt.Sprintf("%s || (%s)", isHarmless, e.exemptExpression())), enforced: true},
	}
	if e.hasExempt() {
		entries = append(entries, entry{Scope: lenient, enforced: true})
	}
	return entries
}

// exemptCondition holds for the users who are exempt, or for those who are not.
func (e *Enforcement) exemptCondition(exempt bool) []admissionregistrationv1.MatchCondition {
	condition := admissionregistrationv1.MatchCondition{Name: "exempt", Expression: e.exemptExpression()}
	if !exempt {
		condition = admissionregistrationv1.MatchCondition{Name: "not-exempt", Expression: "!(" + condition.Expression + ")"}
	}
	return []admissionregistrationv1.MatchCondition{condition}
}

// without returns rules that do not cover a resource.
func without(rules []admissionregistrationv1.RuleWithOperations, resource string) []admissionregistrationv1.RuleWithOperations {
	result := make([]admissionregistrationv1.RuleWithOperations, len(rules))
	for i, rule := range rules {
		result[i] = *rule.DeepCopy()
		result[i].Resources = slices.DeleteFunc(result[i].Resources, func(r string) bool { return r == resource })
	}
	return result
}
