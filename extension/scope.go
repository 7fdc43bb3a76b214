package extension

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Scope says which admissions reach an extension and how the API server is to
// call it. The fields have the meaning of their namesakes in
// admissionregistration.k8s.io/v1; the zero value of each is a default.
//
// Extensions with equal scopes share one webhook entry and one HTTP round trip,
// and run in the order in which they were added.
type Scope struct {
	// Name names the webhook entry, in its path, metrics and logs: a DNS label
	// (RFC 1123). Default: derived from the rest of the scope. Two different
	// scopes must not have the same name.
	Name string

	// Rules are the operations and resources. Default: Pods(CREATE).
	//
	// With failure policy Fail, a rule that has * for the resource leaves out what a
	// cluster needs to start, such as nodes, but for CONNECT: docs/concepts.md lists it. A
	// rule that names such a resource receives it.
	Rules []admissionregistrationv1.RuleWithOperations

	// NamespaceSelector selects the namespaces; [InNamespaces] names them. nil means
	// the watched namespaces, or every namespace if there are none; an empty selector
	// means every namespace.
	//
	// With failure policy Fail, a selector that is not tied to a namespace by
	// name never matches the manager's own namespace, kube-system and
	// kube-node-lease: a webhook that is down must not keep the cluster, or
	// itself, from starting. A scope on kinds that no cluster needs to start can
	// select these, too, by [EveryNamespace]. Only that selector matches namespaces that
	// the operator excludes (Registration.ExcludeNamespaces); one that names them is an
	// error.
	//
	// A selector that names its namespaces, as that of InNamespaces does, takes the
	// extension's rights along, any other does not: see [Entitled].
	NamespaceSelector *metav1.LabelSelector

	// ObjectSelector selects objects by their labels. Default: all. It is not for
	// security: everyone who may write an object chooses its labels. A rule for
	// CONNECT cannot have one: the options of a connection have no labels, and the
	// API server would never call the extension.
	ObjectSelector *metav1.LabelSelector

	// MatchConditions are CEL expressions that must all hold for a call. They know
	// object, oldObject, request and authorizer, but not namespaceObject.
	MatchConditions []admissionregistrationv1.MatchCondition

	// FailurePolicy says what happens to the object when the webhook fails.
	// Default: the manager's failure policy.
	FailurePolicy *admissionregistrationv1.FailurePolicyType

	// SideEffects is None by default. Set NoneOnDryRun for an extension that
	// changes something outside the object unless [Request.DryRun] is true.
	SideEffects *admissionregistrationv1.SideEffectClass

	// Timeout is how long the API server waits: whole seconds, 1 s to 30 s. It calls
	// mutating webhooks one after another, and ends a request after 34 s: three that wait
	// for 10 s leave little to others, and the failure policy Ignore does not help then.
	// Default: 10 s.
	Timeout time.Duration

	// MatchPolicy is Equivalent by default.
	MatchPolicy *admissionregistrationv1.MatchPolicyType

	// ReinvocationPolicy is Never by default. IfNeeded is an error for a Validator.
	ReinvocationPolicy *admissionregistrationv1.ReinvocationPolicyType

	// Mode is the extension's mode unless the operator sets another. In Warn and Observe
	// it sees the object as those in force leave it, and nothing that becomes of the
	// extension changes the request: it is called by a webhook of its own, with failure
	// policy Ignore, beside the validating ones. Default: Enforce.
	Mode Mode `json:",omitempty"`

	// Modes are those that the operator may choose. Name Enforce alone for an extension on
	// which a right or a record depends, and all three for one with effects outside the
	// object that it leaves out unless [Request.Mode] is Enforce. Default: all, or Enforce
	// alone if SideEffects is NoneOnDryRun.
	Modes []Mode `json:",omitempty"`
}

// InNamespaces selects the namespaces of these names, of which there must be at least one.
// The extension's Rights are granted in each of them, and nowhere else: see [Entitled].
// Its Reads are of the watched namespaces all the same: see [Reader].
func InNamespaces(names ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: names},
	}}
}

// EveryNamespace selects every namespace without exception, kube-system and the
// manager's own included: it names them all. Use it where no Pod that the cluster
// needs waits for the webhook; an empty selector leaves those namespaces out.
func EveryNamespace() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists},
	}}
}

// Scoped is implemented by an [Extension] that sets its scope.
type Scoped interface {
	Scope() Scope
}

// Pods returns the rule for Pods on the given operations, by default CREATE. It
// does not cover subresources.
func Pods(ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	if len(ops) == 0 {
		ops = []admissionregistrationv1.OperationType{admissionregistrationv1.Create}
	}
	return Resources("", "v1", []string{"pods"}, ops...)
}

// Connect returns the rule for CONNECT on subresources of the core group:
// Connect("pods/exec", "pods/attach", "pods/portforward").
func Connect(resources ...string) []admissionregistrationv1.RuleWithOperations {
	return Resources("", "v1", resources, admissionregistrationv1.Connect)
}

// Resources returns the rule for any resources of one group and version:
// Resources("apps", "v1", []string{"deployments"}, admissionregistrationv1.Update).
func Resources(group, version string, resources []string, ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: ops,
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{group},
			APIVersions: []string{version},
			Resources:   resources,
		},
	}}
}
