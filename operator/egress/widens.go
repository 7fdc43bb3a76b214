package egress

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Widens reports whether a policy of somebody else could allow Pods that we hold more than
// ours does: policies add up. It could if it allows any egress, and may select such a Pod. One that only denies
// narrows, and one about ingress is none of our matter.
//
// labels are the labels that every one of these Pods has, and the only ones; one with the value "" may have
// any value, and so may [v1alpha1.LabelEgress] if it is not among them. Pods with other keys need another call: a
// selector by DoesNotExist selects whatever lacks the key. Kubernetes itself adds those of
// the topology. So a selector by any other label selects none of them, whatever Pods
// there are at the moment, and one that wants every Pod says {key: admitkit.dev/egress, operator: DoesNotExist}.
//
// A policy that cannot be read widens.
func Widens(policy *unstructured.Unstructured, labels map[string]string) bool {
	if policy.GroupVersionKind().Group == CiliumNetworkPolicy.Group {
		return ciliumWidens(policy, labels)
	}
	var p networkingv1.NetworkPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(policy.Object, &p); err != nil {
		return true
	}
	about := len(p.Spec.PolicyTypes) == 0 || slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	return about && len(p.Spec.Egress) > 0 && maySelect(&p.Spec.PodSelector, labels)
}

// ciliumWidens is Widens for a CiliumNetworkPolicy, which has several rules in one object. An empty rule
// allows nothing.
func ciliumWidens(policy *unstructured.Unstructured, labels map[string]string) bool {
	specs, _, err := unstructured.NestedSlice(policy.Object, "specs")
	if err != nil {
		return true
	}
	if spec, found := policy.Object["spec"]; found {
		specs = append(specs, spec)
	}
	return slices.ContainsFunc(specs, func(of any) bool {
		spec, readable := of.(map[string]any)
		if !readable {
			return true
		}
		rules, _, err := unstructured.NestedSlice(spec, "egress")
		if err != nil {
			return true
		}
		allows := slices.ContainsFunc(rules, func(rule any) bool { r, readable := rule.(map[string]any); return !readable || len(r) > 0 })
		if !allows {
			return false
		}
		selector := &metav1.LabelSelector{}
		if of, found := spec["endpointSelector"].(map[string]any); found {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(of, selector); err != nil {
				return true
			}
		}
		return maySelect(selector, labels)
	})
}

// maySelect reports whether a selector may select a Pod with the label of egress and these.
func maySelect(selector *metav1.LabelSelector, labels map[string]string) bool {
	may := func(key string, values ...string) bool {
		value, has, open := lookUp(key, labels)
		return open || has && (len(values) == 0 || slices.Contains(values, value))
	}
	for key, value := range selector.MatchLabels {
		if !may(key, value) {
			return false
		}
	}
	for _, e := range selector.MatchExpressions {
		value, has, open := lookUp(e.Key, labels)
		certain := has && !open
		switch e.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpExists:
			if !may(e.Key, e.Values...) {
				return false
			}
		case metav1.LabelSelectorOpNotIn:
			if certain && slices.Contains(e.Values, value) {
				return false
			}
		case metav1.LabelSelectorOpDoesNotExist:
			if has {
				return false
			}
		}
	}
	return true
}

// lookUp says what is known of a label of our Pods: its value, whether they have it, and
// whether they may have any value.
func lookUp(key string, labels map[string]string) (value string, has, open bool) {
	for _, source := range []string{"k8s:", "any:"} { // as Cilium writes where a label is from
		key = strings.TrimPrefix(key, source)
	}
	if value, has = labels[key]; has {
		return value, true, value == ""
	}
	if key == v1alpha1.LabelEgress {
		return "", true, true
	}
	for _, prefix := range []string{"topology.kubernetes.io/", "topology.k8s.io/", "io.kubernetes.pod.", "io.cilium.", "reserved:"} {
		if strings.HasPrefix(key, prefix) {
			return "", false, true
		}
	}
	return "", false, false
}

// IsOfTopology reports whether Kubernetes itself writes a label onto Pods, when it binds them to a
// node.
func IsOfTopology(key string) bool {
	return strings.HasPrefix(key, "topology.kubernetes.io/") || strings.HasPrefix(key, "topology.k8s.io/")
}
