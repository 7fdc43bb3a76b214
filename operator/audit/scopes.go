package audit

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
)

// scopes returns the admissions that are acts. Sessions, debugging and new images
// share one webhook, which enforcement divides. The creation of Pods has another, which
// the API server calls only for Pods that are a way in by themselves.
func (o *Options) scopes() []enforce.Entry {
	rules, conditions := act.Sessions(o.ImageUpdaters)
	if o.WithoutNodeProxy {
		rules = enforce.Without(rules, string(v1alpha1.WayNodeProxy))
	}
	sessions := o.scope("audit", rules, conditions)
	rules, conditions = act.Creations()
	creations := enforce.Entry{Scope: o.scope("audit-pods", rules, conditions)}
	if o.Enforcement == nil {
		return []enforce.Entry{{Scope: sessions}, creations}
	}
	enforcement := o.Enforcement.options()
	return append(enforcement.Entries(sessions), creations)
}

func (o *Options) scope(name string, rules []admissionregistrationv1.RuleWithOperations, conditions []admissionregistrationv1.MatchCondition) extension.Scope {
	failurePolicy, sideEffects := o.failurePolicy(), admissionregistrationv1.SideEffectClassNoneOnDryRun
	return extension.Scope{
		Name: name, Rules: rules, MatchConditions: conditions, NamespaceSelector: o.NamespaceSelector,
		FailurePolicy: &failurePolicy, Modes: []extension.Mode{extension.Enforce}, SideEffects: &sideEffects,
	}
}

// failurePolicy is Fail if a sink is Closed: no act goes on without its record.
func (o *Options) failurePolicy() admissionregistrationv1.FailurePolicyType {
	for _, sink := range o.Sinks {
		if sink.FailurePolicy == Closed {
			return admissionregistrationv1.Fail
		}
	}
	return admissionregistrationv1.Ignore
}
