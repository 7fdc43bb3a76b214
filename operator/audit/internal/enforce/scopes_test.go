package enforce

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Every namespace is in exactly one of the scopes of sessions.
func TestANamespaceHasEitherEnforcementOrNot(t *testing.T) {
	for name, enforcement := range map[string]*Options{"by label": {}, "by name": {Namespaces: []string{"shop"}}} {
		for namespace, set := range map[string]labels.Set{
			"labelled": {corev1.LabelMetadataName: "a", Label: "true"},
			"named":    {corev1.LabelMetadataName: "shop"},
			"neither":  {corev1.LabelMetadataName: "b"},
			"off":      {corev1.LabelMetadataName: "b", Label: "false"},
		} {
			in := 0
			for _, on := range []bool{true, false} {
				selector, err := metav1.LabelSelectorAsSelector(enforcement.selector(nil, on))
				if err != nil {
					t.Fatal(err)
				}
				if !selector.Matches(set) {
					continue
				}
				in++
				if want := name == "by label" && namespace == "labelled" || name == "by name" && namespace == "named"; want != on {
					t.Errorf("%s: enforcement for a namespace that is %s: %t", name, namespace, on)
				}
			}
			if in != 1 {
				t.Errorf("%s: a namespace that is %s is in %d scopes", name, namespace, in)
			}
		}
	}
}
