package offline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/webhook"
)

// Check returns what is wrong with the scopes of webhooks: what an API server refuses
// only when they are registered, and what it accepts although it never calls them.
func (k *Kinds) Check(webhooks []*webhook.Webhook) error { return errors.Join(k.problems(webhooks)...) }

// CheckInstallation is Check without the NamespaceSelectors that select nothing: the flags
// of an installation may leave nothing of a scope, such as of sessions without enforcement
// where it is on in the only namespace.
func (k *Kinds) CheckInstallation(webhooks []*webhook.Webhook) error {
	return errors.Join(slices.DeleteFunc(k.problems(webhooks), func(err error) bool { return errors.Is(err, errNoNamespace) })...)
}

// errNoNamespace is the error of a NamespaceSelector that selects nothing.
var errNoNamespace = errors.New("NamespaceSelector")

func (k *Kinds) problems(webhooks []*webhook.Webhook) []error {
	var errs []error
	for _, w := range webhooks {
		for _, err := range k.checkScope(w.Scope) {
			errs = append(errs, fmt.Errorf("the scope of webhook %s: %w", w.Name, err))
		}
	}
	return errs
}

func (k *Kinds) checkScope(scope extension.Scope) []error {
	var errs []error
	for i, rule := range scope.Rules {
		for _, err := range k.checkRule(rule) {
			errs = append(errs, fmt.Errorf("Rules[%d]: %w", i, err))
		}
	}
	if err := host.CheckSelector(scope.ObjectSelector); err != nil {
		errs = append(errs, fmt.Errorf("ObjectSelector: %w", err))
	}
	if err := host.CheckSelector(scope.NamespaceSelector); err != nil && !slices.ContainsFunc(scope.Rules, k.hasNoNamespace) {
		errs = append(errs, fmt.Errorf("%w: %w", errNoNamespace, err))
	}
	return append(errs, checkConditions(scope.MatchConditions)...)
}

// hasNoNamespace reports whether a rule may match an object without a namespace, which
// every NamespaceSelector selects.
func (k *Kinds) hasNoNamespace(rule admissionregistrationv1.RuleWithOperations) bool {
	if rule.Scope != nil && *rule.Scope == admissionregistrationv1.NamespacedScope {
		return false
	}
	return slices.ContainsFunc(rule.Resources, func(pattern string) bool {
		resource, _, _ := strings.Cut(pattern, "/")
		return slices.ContainsFunc(rule.APIGroups, func(group string) bool {
			kind, known := k.Of(schema.GroupResource{Group: group, Resource: resource})
			return !known || !k.Namespaced(kind.GroupKind())
		})
	})
}

// checkRule returns the resources of a rule for which no request can come.
func (k *Kinds) checkRule(rule admissionregistrationv1.RuleWithOperations) []error {
	var errs []error
	for _, pattern := range rule.Resources {
		resource, subresource, _ := strings.Cut(pattern, "/")
		if resource == "*" {
			continue
		}
		// It is enough that one of the groups has the resource.
		var first error
		for i, group := range rule.APIGroups {
			err := k.checkResource(rule, schema.GroupResource{Group: group, Resource: resource}, subresource)
			if i == 0 || err == nil {
				first = err
			}
			if err == nil {
				break
			}
		}
		if first != nil {
			errs = append(errs, first)
		}
	}
	return errs
}

// checkResource returns why no request for a resource of a rule can come.
func (k *Kinds) checkResource(rule admissionregistrationv1.RuleWithOperations, resource schema.GroupResource, subresource string) error {
	if resource.Group == "*" {
		return nil
	}
	kind, found := k.Of(resource)
	if !found {
		return k.checkUnknown(resource)
	}
	if kind.Group == admissionregistrationv1.GroupName && slices.Contains(exempt, kind.Kind) {
		return fmt.Errorf("API servers call no webhook for %s", resource)
	}
	served, _ := k.Find(kind.GroupKind())
	if !slices.ContainsFunc(served.GroupVersions, func(v schema.GroupVersion) bool { return has(rule.APIVersions, v.Version) }) {
		return fmt.Errorf("%s has no version %s: it has %s", resource, strings.Join(rule.APIVersions, ","), describeVersions(served.GroupVersions))
	}
	if rule.Scope != nil && (*rule.Scope == admissionregistrationv1.ClusterScope && served.Namespaced ||
		*rule.Scope == admissionregistrationv1.NamespacedScope && !served.Namespaced) {
		return fmt.Errorf("scope %s never matches %s", *rule.Scope, resource)
	}
	return k.checkOperations(rule, kind, resource, subresource)
}

func (k *Kinds) checkOperations(rule admissionregistrationv1.RuleWithOperations, kind schema.GroupVersionKind, resource schema.GroupResource, subresource string) error {
	possible := []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete}
	subresources := k.Subresources(kind.GroupKind())
	switch {
	case subresource == "*":
		for _, name := range subresources {
			possible = append(possible, operationOf(name))
		}
	case subresource != "" && !slices.Contains(subresources, subresource):
		return fmt.Errorf("%s has no subresource %s that is written or connected to: it has %s", resource, subresource, list(subresources))
	case subresource != "":
		possible = []admissionv1.Operation{operationOf(subresource)}
	}
	for _, operation := range rule.Operations {
		if operation == admissionregistrationv1.OperationAll || slices.Contains(possible, admissionv1.Operation(operation)) {
			return nil
		}
	}
	return fmt.Errorf("%v of %s never comes: its requests are %v", rule.Operations, strings.TrimSuffix(resource.String()+"/"+subresource, "/"), possible)
}

// checkUnknown returns an error for a resource that certainly does not exist: one of a
// group of Kubernetes, or the singular of one that a CustomResourceDefinition defines.
func (k *Kinds) checkUnknown(resource schema.GroupResource) error {
	for kind, s := range k.Custom() {
		if kind.Group == resource.Group && (strings.EqualFold(kind.Kind, resource.Resource) || kinds.IsPluralOf(resource.Resource, kind.Kind)) {
			return fmt.Errorf("there is no resource %s: its CustomResourceDefinition says %s", resource, s.Resource)
		}
	}
	if !clientgoscheme.Scheme.IsGroupRegistered(resource.Group) {
		return nil
	}
	var near []string
	for known := range kinds.Builtin() {
		if known.Resource == resource.Resource || known.Group == resource.Group && (strings.HasPrefix(known.Resource, resource.Resource) || kinds.IsPluralOf(known.Resource, resource.Resource)) {
			near = append(near, known.String())
		}
	}
	if len(near) == 0 {
		return fmt.Errorf("Kubernetes has no resource %s", resource)
	}
	return fmt.Errorf("Kubernetes has no resource %s, but %s", resource, list(near))
}

func describeVersions(all []schema.GroupVersion) string {
	names := make([]string, len(all))
	for i, version := range all {
		names[i] = version.Version
	}
	return list(names)
}

// maxConditions is the API server's limit.
const maxConditions = 64

// checkConditions follows the validation of match conditions by an API server
// (k8s.io/kubernetes, pkg/apis/admissionregistration/validation).
func checkConditions(conditions []admissionregistrationv1.MatchCondition) []error {
	var errs []error
	if len(conditions) > maxConditions {
		errs = append(errs, fmt.Errorf("MatchConditions: %d are too many: at most %d", len(conditions), maxConditions))
	}
	known := sets.Set[string]{}
	for i, condition := range conditions {
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("MatchConditions[%d]: %s", i, fmt.Sprintf(format, args...)))
		}
		if problems := validation.IsQualifiedName(condition.Name); len(problems) > 0 {
			fail("Name: %q: %s", condition.Name, strings.Join(problems, ", "))
		}
		if known.Has(condition.Name) {
			fail("Name: %q: another condition has it, too", condition.Name)
		}
		known.Insert(condition.Name)
		switch expression := strings.TrimSpace(condition.Expression); expression {
		case "":
			fail("Expression: it is empty")
		case "false":
			fail("Expression: false: no request ever matches")
		default:
			if err := compile(expression, environment.NewExpressions).Error; err != nil {
				fail("Expression: %q: %s", condition.Expression, err.Detail)
			}
		}
	}
	return errs
}
