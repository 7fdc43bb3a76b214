package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
)

// Fact is something that the API server knows when it decides whether to call a
// webhook.
type Fact string

// The facts that may be unknown without a cluster.
const (
	// TheKind is the resource of a kind, and whether it has a namespace.
	TheKind Fact = "kind"
	// TheVersion is the object in another version, for a rule that names only that
	// one (matchPolicy Equivalent). Only an API server can convert objects.
	TheVersion Fact = "version"
	// TheNamespace is the labels of the namespace.
	TheNamespace Fact = "namespace"
	// TheConditions is what a match condition evaluates to that asks the authorizer, or reads
	// something else that the request does not have.
	TheConditions Fact = "conditions"
)

// Unknown is the error of a request for which a fact decides whether the webhook is
// called, and only a cluster has that fact. Callers add how the user can provide it.
type Unknown struct {
	Fact    Fact
	Webhook string
	Detail  string
}

func (u *Unknown) Error() string {
	return fmt.Sprintf("cannot determine whether the API server calls the webhook %s: %s", u.Webhook, u.Detail)
}

// exempt lists the kinds of admissionregistration.k8s.io for which API servers call
// no webhook: through them, users repair a broken webhook.
var exempt = []string{
	"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
}

// virtual lists the resources that API servers do not store, by group. From
// Kubernetes 1.37 (feature ExcludeAdmissionWebhookVirtualResources), they call no
// webhook for them.
var virtual = map[string][]string{
	"authentication.k8s.io": {"selfsubjectreviews", "tokenreviews"},
	"authorization.k8s.io":  {"localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"},
}

// Matches reports whether an API server calls a webhook with this scope for the
// request. The error is an *[Unknown] if that depends on something that the request
// does not say, and a *[Failed] if the API server refuses the request instead.
func (r *Request) Matches(scope extension.Scope) (bool, error) {
	r = r.namedBy(scope.Rules)
	called, err := r.decide(scope)
	if r.known {
		return called, err
	}
	for _, other := range r.possible(scope, called || err != nil) {
		if c, e := other.decide(scope); c != called || (e == nil) != (err == nil) {
			return false, &Unknown{Fact: TheKind, Webhook: scope.Name, Detail: fmt.Sprintf(
				"the kind %s is not one of Kubernetes, so its resource and scope are unknown (a guess: %s, with a namespace)", r.Kind.GroupKind(), r.Resource.Resource)}
		}
	}
	return called, err
}

// namedBy returns the request with the resource that the rules name, if that may be the
// plural of its unknown kind: the author of the rules knows the plural.
func (r *Request) namedBy(rules []admissionregistrationv1.RuleWithOperations) *Request {
	if r.known || r.named {
		return r
	}
	for _, rule := range rules {
		for _, pattern := range rule.Resources {
			resource, _, _ := strings.Cut(pattern, "/")
			if has(rule.APIGroups, r.Resource.Group) && kinds.IsPluralOf(resource, r.Kind.Kind) {
				named := *r
				named.Resource.Resource, named.named = resource, true
				return &named
			}
		}
	}
	return r
}

// possible returns what a request of an unknown kind may be: a request for any
// resource that the rules name, with a namespace or without.
func (r *Request) possible(scope extension.Scope, matches bool) []*Request {
	resources := []string{r.Resource.Resource}
	if !matches && !r.named {
		for _, rule := range scope.Rules {
			for _, pattern := range rule.Resources {
				resource, _, _ := strings.Cut(pattern, "/")
				resources = append(resources, resource)
			}
		}
	}
	var all []*Request
	for _, resource := range resources {
		inNamespace := *r
		inNamespace.Resource.Resource = resource
		// A namespace in the manifest proves nothing: the API server clears it.
		inNone := inNamespace
		inNone.Namespace = ""
		all = append(all, &inNamespace, &inNone)
	}
	return all
}

// answer is whether one condition of a call holds.
type answer int

const (
	no answer = iota
	yes
	unknown
)

func answerOf(is bool) answer {
	if is {
		return yes
	}
	return no
}

// decide follows ShouldCallHook of k8s.io/apiserver (pkg/admission/plugin/webhook/generic).
// testing/differential compares the two.
func (r *Request) decide(scope extension.Scope) (bool, error) {
	if r.isExempt() {
		return false, nil
	}
	inNamespace, err := r.inNamespace(scope.NamespaceSelector)
	if err != nil || inNamespace == no {
		return false, err
	}
	if selected, err := r.selected(scope.ObjectSelector); err != nil || !selected {
		return false, err
	}
	ruled := r.ruled(scope)
	if ruled == no {
		return false, nil
	}
	conditions, err := r.conditions(scope, ruled)
	_, fails := errors.AsType[*Failed](err)
	if err != nil && !fails {
		return false, err
	}
	unknownFact := func(fact Fact, detail string, args ...any) (bool, error) {
		return false, &Unknown{Fact: fact, Webhook: scope.Name, Detail: fmt.Sprintf(detail, args...)}
	}
	switch {
	case conditions.answer == no:
		return false, nil
	case inNamespace == unknown:
		return unknownFact(TheNamespace, "it selects namespaces by labels, and those of %s are unknown", r.Namespace)
	case ruled == unknown:
		return unknownFact(TheVersion, "its rules name other versions of %s than %s, to which an API server that serves them converts the object (matchPolicy Equivalent)",
			r.Resource.GroupResource(), r.Resource.GroupVersion())
	case conditions.answer == unknown:
		return unknownFact(TheConditions, "only a cluster can evaluate its match condition %s", conditions.open)
	}
	return !fails, err
}

// isExempt reports whether API servers call no webhook for the kind.
func (r *Request) isExempt() bool {
	return r.Kind.Group == admissionregistrationv1.GroupName && slices.Contains(exempt, r.Kind.Kind) ||
		slices.Contains(virtual[r.Resource.Group], r.Resource.Resource)
}

// inNamespace decides by the namespace.
func (r *Request) inNamespace(selector *metav1.LabelSelector) (answer, error) {
	if selector == nil || r.Namespace == "" && r.Resource.Resource != "namespaces" {
		return yes, nil
	}
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || compiled.Empty() {
		return answerOf(err == nil), err
	}
	set, known, err := r.namespaceLabels()
	if err != nil || known {
		return answerOf(err == nil && compiled.Matches(set)), err
	}
	all := yes
	requirements, _ := compiled.Requirements()
	for _, requirement := range requirements {
		switch {
		case requirement.Key() != corev1.LabelMetadataName:
			all = unknown
		case !requirement.Matches(set):
			return no, nil
		}
	}
	return all, nil
}

// namespaceLabels returns the labels that namespace selectors see. If they are
// unknown, it returns the one that every namespace has.
func (r *Request) namespaceLabels() (set labels.Set, known bool, err error) {
	changes := r.Operation == admissionv1.Create || r.Operation == admissionv1.Update
	switch {
	case r.Resource.Resource == "namespaces" && r.SubResource == "" && changes:
		set, err = labelsOf(r.Object)
		return set, true, err
	case r.Resource.GroupResource() == corev1.Resource("namespaces") && len(r.OldObject) > 0:
		set, err = labelsOf(r.OldObject)
		return set, true, err
	}
	set = labels.Set{}
	maps.Copy(set, r.NamespaceLabels)
	set[corev1.LabelMetadataName] = r.Namespace
	return set, r.NamespaceLabels != nil, nil
}

// selected decides by the labels of the object. One match is enough, so that no
// update escapes by changing the labels.
func (r *Request) selected(selector *metav1.LabelSelector) (bool, error) {
	if selector == nil {
		return true, nil
	}
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || compiled.Empty() {
		return err == nil, err
	}
	if r.Operation == admissionv1.Connect {
		// The options of a connection have no metadata, and so not even a DoesNotExist
		// or a NotIn matches them.
		return false, nil
	}
	for _, object := range [][]byte{r.Object, r.OldObject} {
		if len(object) == 0 {
			continue
		}
		set, err := labelsOf(object)
		if err != nil || compiled.Matches(set) {
			return err == nil, err
		}
	}
	return false, nil
}

func labelsOf(object []byte) (labels.Set, error) {
	var labelled struct {
		Metadata struct{ Labels map[string]string }
	}
	if err := json.Unmarshal(object, &labelled); err != nil {
		return nil, fmt.Errorf("reading the labels of an object: %w", err)
	}
	return labelled.Metadata.Labels, nil
}

// ruled decides by the rules. It is unknown if only a rule for another version
// matches.
func (r *Request) ruled(scope extension.Scope) answer {
	if slices.ContainsFunc(scope.Rules, func(rule admissionregistrationv1.RuleWithOperations) bool { return r.matchesRule(rule, r.Resource) }) {
		return yes
	}
	if scope.MatchPolicy != nil && *scope.MatchPolicy != admissionregistrationv1.Equivalent {
		return no
	}
	for _, rule := range scope.Rules {
		versions := slices.Clone(r.served)
		if !r.known {
			for _, version := range rule.APIVersions {
				versions = append(versions, schema.GroupVersion{Group: r.Resource.Group, Version: version})
			}
		}
		for _, version := range versions {
			if r.matchesRule(rule, version.WithResource(r.Resource.Resource)) {
				return unknown
			}
		}
	}
	return no
}

func (r *Request) matchesRule(rule admissionregistrationv1.RuleWithOperations, resource schema.GroupVersionResource) bool {
	if rule.Scope != nil && *rule.Scope != admissionregistrationv1.AllScopes {
		// The namespace of a Namespace is its own name, and yet it is in none.
		hasNone := r.Namespace == "" || resource == corev1.SchemeGroupVersion.WithResource("namespaces")
		if hasNone && *rule.Scope != admissionregistrationv1.ClusterScope || !hasNone && *rule.Scope != admissionregistrationv1.NamespacedScope {
			return false
		}
	}
	operation := admissionregistrationv1.OperationType(r.Operation)
	if !slices.Contains(rule.Operations, admissionregistrationv1.OperationAll) && !slices.Contains(rule.Operations, operation) {
		return false
	}
	return Names(rule.Rule, resource, r.SubResource)
}

// Names reports whether a rule names a resource, or a subresource of it.
func Names(rule admissionregistrationv1.Rule, resource schema.GroupVersionResource, subresource string) bool {
	return has(rule.APIGroups, resource.Group) && has(rule.APIVersions, resource.Version) && slices.ContainsFunc(rule.Resources, func(pattern string) bool {
		name, sub, _ := strings.Cut(pattern, "/")
		return (name == "*" || name == resource.Resource) && (sub == "*" || sub == subresource)
	})
}

// has reports whether values has a value, or a * for all.
func has(values []string, value string) bool {
	return slices.Contains(values, "*") || slices.Contains(values, value)
}
