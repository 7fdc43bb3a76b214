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
					return fmt.Errorf("the type of %s and its scope disagree: it takes a %s, which is not the object of %q: use the type of that resource, or the rules of that type",
						h.Name, h.typ, strings.TrimPrefix(group+"/"+resource, "/"))
				}
			}
		}
	}
	return nil
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
