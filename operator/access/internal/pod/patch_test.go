package pod

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func value(v any) *apiextensionsv1.JSON {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &apiextensionsv1.JSON{Raw: raw}
}

// repeated returns n operations.
func repeated(n int, operation func(i int) v1alpha1.JSONPatchOperation) []v1alpha1.JSONPatchOperation {
	operations := make([]v1alpha1.JSONPatchOperation, n)
	for i := range operations {
		operations[i] = operation(i)
	}
	return operations
}

func TestAPatchHasLimitsThatItsErrorNames(t *testing.T) {
	large := value(strings.Repeat("x", 70_000))
	limits := func(cpu string) v1alpha1.JSONPatchOperation {
		return v1alpha1.JSONPatchOperation{Operation: "add", Path: "/spec/containers/0/resources/limits", Value: value(map[string]string{"cpu": cpu})}
	}
	for want, operations := range map[string][]v1alpha1.JSONPatchOperation{
		"257 operations, at most 256": repeated(257, func(int) v1alpha1.JSONPatchOperation {
			return v1alpha1.JSONPatchOperation{Operation: "test", Path: "/kind", Value: value("Pod")}
		}),
		`[1]: copy "/metadata/annotations/b": the Pod, the values and the copies have more than 131072 bytes`: {
			{Operation: "add", Path: "/metadata/annotations/a", Value: large},
			{Operation: "copy", From: "/metadata/annotations/a", Path: "/metadata/annotations/b"},
		},
		`[1]: add "/metadata/annotations/a1": the Pod, the values and`: repeated(8, func(i int) v1alpha1.JSONPatchOperation {
			return v1alpha1.JSONPatchOperation{Operation: "add", Path: fmt.Sprint("/metadata/annotations/a", i), Value: large}
		}),
		`spec.containers[0].resources.limits.cpu: the exponent of "1e-999999999" has 9 digits, at most 2`: {limits("1e-999999999")},
		`limits.cpu: the quantity has 1000 characters, at most 128`:                                       {limits(strings.Repeat("9", 1000))},
		"the Pod has 259 containers, at most 256": repeated(256, func(i int) v1alpha1.JSONPatchOperation {
			return v1alpha1.JSONPatchOperation{Operation: "add", Path: "/spec/containers/-", Value: value(map[string]string{"name": fmt.Sprint("c", i)})}
		}),
	} {
		_, err := New(metav1.ObjectMeta{}, &v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{
			ControllerTargetMutationConfig: &v1alpha1.PodTemplateSpecMutationConfig{PatchSpecOperations: operations},
		}}, busy(), 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// FuzzAPatchIsThatOfALibrary compares with the library that the API server patches
// with.
func FuzzAPatchIsThatOfALibrary(f *testing.F) {
	for _, patch := range []string{
		`[{"op":"add","path":"/spec/a","value":[1,{"b":null}]},{"op":"copy","from":"/spec/a","path":"/spec/b"},{"op":"add","path":"/spec/a/1","value":2},{"op":"test","path":"/spec/b/1/b"}]`,
		`[{"op":"move","from":"/spec/containers/0","path":"/spec/x"},{"op":"remove","path":"/spec/x/name"},{"op":"replace","path":"/spec/containers","value":"~"}]`,
		`[{"op":"add","path":"/spec/a~1b","value":1},{"op":"move","from":"/spec/a~1b","path":"/spec/c~0"},{"op":"add","path":"/spec/containers/-","value":{}},{"op":"remove","path":"/spec/containers/00"}]`,
		`[{"op":"test","path":"/spec/containers/0/name","value":"main"},{"op":"test","path":"/spec","value":{}}]`,
	} {
		f.Add([]byte(patch))
	}
	const before = `{"spec":{"containers":[{"name":"main","image":"i"},{"name":"side"}],"n":5},"metadata":{}}`
	f.Fuzz(func(t *testing.T, raw []byte) {
		var operations []v1alpha1.JSONPatchOperation
		if len(raw) > 4096 || json.Unmarshal(raw, &operations) != nil {
			return
		}
		d := document{left: maxPatched}
		d.root, _ = d.decode([]byte(before))
		for _, operation := range operations {
			if operation.Value == nil {
				operation.Value = &apiextensionsv1.JSON{Raw: []byte("null")}
			}
			if err := d.apply(operation); err != nil {
				return // the library accepts more: the whole document, indices as +0
			}
		}
		patch, err := jsonpatch.DecodePatch(raw)
		if err != nil {
			return
		}
		after, err := patch.Apply([]byte(before))
		if err != nil {
			t.Skip("the library wants a value where null is meant")
		}
		got, err := json.Marshal(d.root)
		if err != nil || !jsonpatch.Equal(got, after) {
			t.Fatalf("%s gives %s, the library %s", raw, got, after)
		}
	})
}

func TestOperationsOfAPatch(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a/b": "1", "c~d": "2"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Args: []string{"a", "b"}}}},
	}
	for want, operations := range map[string][]v1alpha1.JSONPatchOperation{
		"[a b c]":   {{Operation: "add", Path: "/spec/containers/0/args/-", Value: value("c")}},
		"[c a b]":   {{Operation: "add", Path: "/spec/containers/0/args/0", Value: value("c")}},
		"[c b]":     {{Operation: "replace", Path: "/spec/containers/0/args/0", Value: value("c")}},
		"[b]":       {{Operation: "test", Path: "/metadata/labels/a~1b", Value: value("1")}, {Operation: "remove", Path: "/spec/containers/0/args/0"}},
		"[b a]":     {{Operation: "move", From: "/spec/containers/0/args/0", Path: "/spec/containers/0/args/1"}},
		"[a b 2]":   {{Operation: "copy", From: "/metadata/labels/c~0d", Path: "/spec/containers/0/args/2"}},
		"[a b nil]": {{Operation: "add", Path: "/spec/containers/0/args/2"}, {Operation: "replace", Path: "/spec/containers/0/args/2", Value: value("nil")}},
	} {
		patched := pod.DeepCopy()
		if err := applyPatch(patched, operations); err != nil || fmt.Sprint(patched.Spec.Containers[0].Args) != want {
			t.Errorf("got %v, %v, want %s", patched.Spec.Containers[0].Args, err, want)
		}
		if !maps.Equal(patched.Labels, pod.Labels) {
			t.Error(cmp.Diff(pod.Labels, patched.Labels))
		}
	}
	for want, operation := range map[string]v1alpha1.JSONPatchOperation{
		"nothing at the path":    {Operation: "remove", Path: "/spec/none"},
		"not the index":          {Operation: "add", Path: "/spec/containers/01", Value: value("")},
		"\"-1\" is not":          {Operation: "remove", Path: "/spec/containers/-1"},
		"the value is another":   {Operation: "test", Path: "/spec/containers/0/name", Value: value("x")},
		"into itself":            {Operation: "move", From: "/spec", Path: "/spec/x"},
		"begins with a slash":    {Operation: "remove", Path: "spec"},
		"the whole Pod":          {Operation: "replace", Path: "", Value: value(map[string]string{})},
		"is not one of add":      {Operation: "merge", Path: "/spec"},
		"from \"/spec/nowhere\"": {Operation: "copy", From: "/spec/nowhere", Path: "/spec/x"},
	} {
		if err := applyPatch(pod.DeepCopy(), []v1alpha1.JSONPatchOperation{operation}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
