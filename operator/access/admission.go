package access

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// admissions are the parts of the extension that answer admissions. What decides
// about access has failure policy Fail. Sessions in Pods that are not ours have
// Ignore: Fail would stop all of them while no replica runs.
func (a *shared) admissions() []any {
	fail, ignore := admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	write := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	ours := func(name string, resources ...string) extension.Scope {
		return extension.Scope{
			Name: name, FailurePolicy: &fail, NamespaceSelector: a.places.selector(),
			Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resources, write...),
		}
	}
	sessions := slices.Concat(extension.Connect("pods/exec", "pods/attach", "pods/portforward"),
		extension.Resources("", "v1", []string{"pods/ephemeralcontainers"}, admissionregistrationv1.Update))
	named := func(operator string) []admissionregistrationv1.MatchCondition {
		return []admissionregistrationv1.MatchCondition{{
			Name: "access-pod", Expression: fmt.Sprintf("%srequest.name.startsWith('%s')", operator, podAccess.prefix),
		}}
	}
	return []any{
		extension.Validating(&reportGuard[*v1alpha1.PodAccessRequest]{a}, a.reportScope("pod-access-report", "podaccessrequests")),
		extension.Validating(&reportGuard[*v1alpha1.ExecAccessRequest]{a}, a.reportScope("exec-access-report", "execaccessrequests")),
		extension.Validating(&reportGuard[*v1alpha1.RoleAccessRequest]{a}, a.reportScope("role-access-report", "roleaccessrequests")),
		extension.Validating(&recordGuard{a}, a.recordScope()),
		extension.Validating(&deletions{a}, a.deletionScope()),
		extension.Mutating(&decisions{shared: a}, ours("access-decider", "accessdecisions")),
		extension.Validating(&decisions{shared: a}, ours("access-decision", "accessdecisions")),
		extension.Mutating(&defaulter[*v1alpha1.PodAccessRequest]{a, podAccess}, ours("pod-access-requester", "podaccessrequests")),
		extension.Mutating(&defaulter[*v1alpha1.ExecAccessRequest]{a, execAccess}, ours("exec-access-requester", "execaccessrequests")),
		extension.Mutating(&defaulter[*v1alpha1.RoleAccessRequest]{a, roleAccess}, ours("role-access-requester", "roleaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.PodAccessRequest]{a, podAccess}, ours("pod-access-request", "podaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.ExecAccessRequest]{a, execAccess}, ours("exec-access-request", "execaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.RoleAccessRequest]{a, roleAccess}, ours("role-access-request", "roleaccessrequests")),
		extension.ValidatingFunc(a.validatePodTemplate, ours("pod-access-template", "podaccesstemplates")),
		extension.ValidatingFunc(a.validateExecTemplate, ours("exec-access-template", "execaccesstemplates")),
		extension.Mutating(&roleTemplates{a}, ours("role-access-author", "roleaccesstemplates")),
		extension.Validating(&roleTemplates{a}, ours("role-access-template", "roleaccesstemplates")),
		extension.MutatingFunc(a.treatPod, extension.Scope{
			Name: "access-pod", FailurePolicy: &fail, NamespaceSelector: a.places.selectorOfPods(), Rules: extension.Pods(),
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "names-a-template", Expression: fmt.Sprintf("has(object.metadata.annotations) && '%s' in object.metadata.annotations", AnnotationTemplate),
			}},
		}),
		extension.Validating(&guard{a}, extension.Scope{
			Name: "access-pod-session", FailurePolicy: &fail, NamespaceSelector: a.places.selector(),
			Rules: sessions, MatchConditions: named(""),
		}),
		extension.Validating(&guard{a}, extension.Scope{
			Name: "exec-access-session", FailurePolicy: &ignore, NamespaceSelector: a.places.selectorOfPods(), Rules: sessions, MatchConditions: named("!"),
		}),
		extension.Validating(&graceGuard{a}, cluster.GracePeriodScope("access-pod-grace", a.places.selectorOfPods(), podAccess.prefix)),
	}
}
