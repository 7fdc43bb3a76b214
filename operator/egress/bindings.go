package egress

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
)

// GuardBindings returns a handler that refuses bindings of Pods to nodes by which a Pod would
// get labels: any, if its name begins with one of the prefixes, and of the labels from any
// Pod. By labels a policy holds a Pod, and whoever binds a Pod can give it some. A
// scheduler's bindings have none but those of topology.
func GuardBindings(scope string, namespaces *metav1.LabelSelector, labels []string, prefixes ...string) *extension.Handler {
	fail := admissionregistrationv1.Fail
	has := "(has(object.metadata.labels) ? object.metadata.labels : {})"
	return extension.Validating(bindingGuard{}, extension.Scope{
		Name: scope, FailurePolicy: &fail, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: namespaces,
		Rules: extension.Resources("", "v1", []string{"pods/binding", "bindings"}, admissionregistrationv1.Create),
		MatchConditions: []admissionregistrationv1.MatchCondition{{
			Name: "labels-of-a-policy",
			Expression: fmt.Sprintf("['%s'].exists(l, l in %[2]s) || size(%[2]s) > 0 && ['%[3]s'].exists(p, object.metadata.name.startsWith(p))",
				strings.Join(labels, "', '"), has, strings.Join(prefixes, "', '")),
		}},
	})
}

type bindingGuard struct{}

// Validate denies labels that are not of topology.
func (bindingGuard) Validate(_ context.Context, binding *metav1.PartialObjectMetadata, _ *extension.Request) error {
	for _, key := range slices.Sorted(maps.Keys(binding.Labels)) {
		if !IsOfTopology(key) {
			return extension.Denyf("metadata.labels: a network policy holds the Pod by its labels: leave out %s", key)
		}
	}
	return nil
}
