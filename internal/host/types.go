package host

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
)

// Connections maps the kind of a connection's options to the resource that they
// connect to.
var Connections = map[string]string{
	"PodExecOptions":        "pods/exec",
	"PodAttachOptions":      "pods/attach",
	"PodPortForwardOptions": "pods/portforward",
	"PodProxyOptions":       "pods/proxy",
	"ServiceProxyOptions":   "services/proxy",
	"NodeProxyOptions":      "nodes/proxy",
}

// KindsOf returns the kinds that a handler's type stands for, in a scheme. It returns
// none if the type can hold every kind, or is not in the scheme.
func (h *Handler) KindsOf(scheme *runtime.Scheme) []schema.GroupVersionKind {
	into := h.NewObject()
	switch into.(type) {
	case nil, *metav1.PartialObjectMetadata, runtime.Unstructured:
		return nil
	}
	kinds, _, err := scheme.ObjectKinds(into)
	if err != nil {
		return nil // unknown
	}
	return kinds
}

// checkRules returns an error if a rule asks for a resource of another type than the
// handler takes: its objects would be decoded to an empty object, which most Validators
// allow. Rules with a wildcard, types that client-go does not have, and the objects of
// subresources other than scale are compared with each request instead.
func checkRules(h *Handler) error {
	kinds := h.KindsOf(clientgoscheme.Scheme)
	if len(kinds) == 0 {
		return nil
	}
	rules := h.Scope.Rules
	if len(rules) == 0 {
		rules = extension.Pods()
	}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if _, sub, is := strings.Cut(resource, "/"); is && !isConnect(rule) && sub != "scale" {
					continue
				}
				if !slices.ContainsFunc(kinds, func(kind schema.GroupVersionKind) bool { return serves(kind, group, resource) }) {
					return disagreement(h, kinds[0], group, resource)
				}
			}
		}
	}
	return nil
}

// disagreement is the error of a rule for a resource of another type than the handler's.
func disagreement(h *Handler, kind schema.GroupVersionKind, group, resource string) error {
	name := func(group, resource string) string { return strings.TrimPrefix(group+"/"+resource, "/") }
	meant, is := Connections[kind.Kind]
	if !is {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		meant = plural.Resource
	}
	missing := ""
	if known, _, _ := strings.Cut(resource, "/"); !exists(group, known) {
		missing = fmt.Sprintf(", and Kubernetes has no %q", name(group, known))
	}
	if group == "core" {
		missing += ` (the name of the core group is "")`
	}
	return fmt.Errorf("the type of %s and its scope disagree: a %s is the object of %q, not of %q%s: use the type of that resource, or the rules of that type",
		h.Name, h.typ, name(kind.Group, meant), name(group, resource), missing)
}

// exists reports whether Kubernetes may have a resource, which it has not if the group is
// one of its own without that resource.
func exists(group, resource string) bool {
	if !clientgoscheme.Scheme.IsGroupRegistered(group) {
		return strings.Contains(group, ".") // that of a CustomResourceDefinition
	}
	for kind := range clientgoscheme.Scheme.AllKnownTypes() {
		if plural, _ := meta.UnsafeGuessKindToResource(kind); kind.Group == group && plural.Resource == resource {
			return true
		}
	}
	return false
}

func isConnect(rule admissionregistrationv1.RuleWithOperations) bool {
	return slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Connect})
}

// serves reports whether a resource of a rule may have objects of a kind.
func serves(kind schema.GroupVersionKind, group, resource string) bool {
	if strings.Contains(resource, "*") {
		return true
	}
	if connection, ok := Connections[kind.Kind]; ok && kind.Group == "" {
		return group == "" && resource == connection
	}
	if strings.HasSuffix(resource, "/scale") {
		return kind.Group == "autoscaling" && kind.Kind == "Scale"
	}
	want, _ := meta.UnsafeGuessKindToResource(kind)
	return (group == "*" || group == kind.Group) && resource == want.Resource
}
