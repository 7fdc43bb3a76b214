package admission

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// Parts are the parts of the extension that answer admissions.
func Parts(conn *kube.Connection) []any {
	parts := handlers(conn)
	if conn.Egress.On() {
		parts = append(parts, extension.Validating(&policyGuard{conn}, policyScope(conn)))
	}
	return parts
}

// handlers are those that there are whatever the operator says. What decides
// about access has failure policy Fail. Sessions in Pods that are not ours have
// Ignore: Fail would stop all of them while no replica runs.
func handlers(a *kube.Connection) []any {
	fail, ignore := admissionregistrationv1.Fail, admissionregistrationv1.Ignore
	write := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	ours := func(name string, resources ...string) extension.Scope {
		return extension.Scope{
			Name: name, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.Selector(),
			Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resources, write...),
		}
	}
	sessions := slices.Concat(extension.Connect("pods/exec", "pods/attach", "pods/portforward"),
		extension.Resources("", "v1", []string{"pods/ephemeralcontainers"}, admissionregistrationv1.Update))
	named := func(operator string) []admissionregistrationv1.MatchCondition {
		return []admissionregistrationv1.MatchCondition{{
			Name: "access-pod", Expression: fmt.Sprintf("%srequest.name.startsWith('%s')", operator, grant.PodAccess.Prefix),
		}}
	}
	templates := &templateRules{a}
	return []any{
		extension.Validating(&reportGuard[*v1alpha1.PodAccessRequest]{a}, reportScope(a, "pod-access-report", "podaccessrequests")),
		extension.Validating(&reportGuard[*v1alpha1.ExecAccessRequest]{a}, reportScope(a, "exec-access-report", "execaccessrequests")),
		extension.Validating(&reportGuard[*v1alpha1.RoleAccessRequest]{a}, reportScope(a, "role-access-report", "roleaccessrequests")),
		extension.Validating(&recordGuard{a}, recordScope(a)),
		extension.Validating(&deletions{a}, deletionScope(a)),
		extension.Mutating(&decisions{Connection: a}, ours("access-decider", "accessdecisions")),
		extension.Validating(&decisions{Connection: a}, ours("access-decision", "accessdecisions")),
		extension.Mutating(&defaulter[*v1alpha1.PodAccessRequest]{a, grant.PodAccess}, ours("pod-access-requester", "podaccessrequests")),
		extension.Mutating(&defaulter[*v1alpha1.ExecAccessRequest]{a, grant.ExecAccess}, ours("exec-access-requester", "execaccessrequests")),
		extension.Mutating(&defaulter[*v1alpha1.RoleAccessRequest]{a, grant.RoleAccess}, ours("role-access-requester", "roleaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.PodAccessRequest]{a, grant.PodAccess}, ours("pod-access-request", "podaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.ExecAccessRequest]{a, grant.ExecAccess}, ours("exec-access-request", "execaccessrequests")),
		extension.Validating(&requestRules[*v1alpha1.RoleAccessRequest]{a, grant.RoleAccess}, ours("role-access-request", "roleaccessrequests")),
		extension.ValidatingFunc(templates.validatePodTemplate, ours("pod-access-template", "podaccesstemplates")),
		extension.ValidatingFunc(templates.validateExecTemplate, ours("exec-access-template", "execaccesstemplates")),
		extension.Mutating(&roleTemplates{templates}, ours("role-access-author", "roleaccesstemplates")),
		extension.Validating(&roleTemplates{templates}, ours("role-access-template", "roleaccesstemplates")),
		extension.MutatingFunc(templates.treatPod, extension.Scope{
			Name: "access-pod", FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.SelectorOfPods(), Rules: extension.Pods(),
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "names-a-template", Expression: fmt.Sprintf("has(object.metadata.annotations) && '%s' in object.metadata.annotations", grant.AnnotationTemplate),
			}},
		}),
		extension.Validating(&guard{a}, extension.Scope{
			Name: "access-pod-session", FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.Selector(),
			Rules: sessions, MatchConditions: named(""),
		}),
		extension.Validating(&guard{a}, extension.Scope{
			Name: "exec-access-session", FailurePolicy: &ignore, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.SelectorOfPods(), Rules: sessions, MatchConditions: named("!"),
		}),
		egress.GuardBindings("access-pod-binding", a.Places.SelectorOfPods(), []string{grant.LabelRequest, v1alpha1.LabelEgress}, grant.PodAccess.Prefix),
		extension.Validating(&graceGuard{a}, cluster.GracePeriodScope("access-pod-grace", a.Places.SelectorOfPods(), grant.PodAccess.Prefix)),
	}
}
