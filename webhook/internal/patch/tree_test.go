package patch

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestATreeWithAValueThatJSONHasNotIsAnErrorThatSaysWhere(t *testing.T) {
	raw := []byte(`{"spec":{"n":1,"list":[{"name":"a"}]}}`)
	endless := map[string]any{}
	endless["self"] = endless
	for name, test := range map[string]struct {
		set  any
		want string
	}{
		"an int":                   {int(5), "spec.list[1] is of type int, which an unstructured object cannot hold; use int64"},
		"the same number":          {[]any{int32(1)}, "spec.list[1][0] is of type int32, which an unstructured object cannot hold; use int64"},
		"a float32":                {float32(1), "spec.list[1] is of type float32, which an unstructured object cannot hold; use float64"},
		"labels":                   {map[string]any{"a": map[string]string{"b": "c"}}, "spec.list[1].a is of type map[string]string, which an unstructured object cannot hold; use map[string]any"},
		"strings":                  {[]string{"a"}, "spec.list[1] is of type []string, which an unstructured object cannot hold; use []any"},
		"a Go type":                {corev1.EnvVar{Name: "a"}, "spec.list[1] is of type v1.EnvVar, which an unstructured object cannot hold; use map[string]any"},
		"a tree in itself":         {endless, "nests deeper than 10000"},
		"a string of another type": {corev1.ProtocolTCP, "spec.list[1] is of type v1.Protocol, which an unstructured object cannot hold; use string"},
	} {
		t.Run(name, func(t *testing.T) {
			before := decode(t, raw, &unstructured.Unstructured{})
			after := before.DeepCopyObject().(*unstructured.Unstructured)
			content := after.Object["spec"].(map[string]any)
			content["list"] = append(content["list"].([]any), test.set)
			ops, err := Diff(raw, before, after, Options{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v and the error %v, want one that says %q", ops, err, test.want)
			}
		})
	}
}
