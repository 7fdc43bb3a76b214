package patch

import (
	_ "embed"
	"fmt"
	"slices"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/internal/wire"
)

// realPod is a Pod as an API server sends it, with managedFields: 5 KB.
//
//go:embed testdata/pod.json
var realPod []byte

func TestWhatCannotBeEncodedIsAnError(t *testing.T) {
	before := decode(t, []byte(`{"spec":{}}`), &unstructured.Unstructured{})
	after := before.DeepCopyObject().(*unstructured.Unstructured)
	after.Object["spec"] = func() {}
	if ops, err := Diff([]byte(`{"spec":{}}`), before, after, Options{}); err == nil {
		t.Errorf("got %v and no error", ops)
	}
	if _, err := Diff(realPod, &corev1.Pod{}, &corev1.Node{}, Options{}); err == nil {
		t.Error("a Pod and a Node were compared without an error")
	}
}

func TestAJSONThatIsCutOffNeverPanics(t *testing.T) {
	before := decode(t, realPod, &corev1.Pod{}).(*corev1.Pod)
	after := before.DeepCopy()
	after.Spec.Containers[1].Args[0], after.Spec.SchedulerName = "x", "y"
	after.Spec.Containers[0], after.Spec.Containers[1] = after.Spec.Containers[1], after.Spec.Containers[0]
	for end := range realPod {
		if _, err := Diff(realPod[:end], before, after, Options{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAListOfTenThousandItemsIsCheapToCompare(t *testing.T) {
	const n = 10_000
	before := &corev1.Pod{}
	before.Spec.Containers = []corev1.Container{{Name: "c"}}
	for i := range n {
		before.Spec.Containers[0].Env = append(before.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("E%d", i), Value: "v"})
		before.Spec.Containers[0].Args = append(before.Spec.Containers[0].Args, fmt.Sprintf("a%d", i))
		before.Spec.Tolerations = append(before.Spec.Tolerations, corev1.Toleration{Key: fmt.Sprintf("t%d", i)})
	}
	raw := encode(t, before)
	after := before.DeepCopy()
	c := &after.Spec.Containers[0]
	c.Env[0].Value, c.Env[n-1].Value = "x", "y"
	c.Env[1], c.Env[n-2] = c.Env[n-2], c.Env[1]
	c.Args = slices.Delete(c.Args, 7, 9)
	c.Args = append(c.Args[1:], "end")
	after.Spec.Tolerations = slices.Insert(after.Spec.Tolerations[1:], 500, corev1.Toleration{Key: "new"})
	after.Spec.Tolerations[n-1].Key = "last"
	ops, err := Diff(raw, before, after, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ops) > 14 {
		t.Errorf("got %d operations for 13 changes", len(ops))
	}
	requireSame(t, apply(t, raw, ops), after)
}

func decode(t testing.TB, raw []byte, into runtime.Object) runtime.Object {
	t.Helper()
	into = into.DeepCopyObject()
	if err := wire.Decode(raw, into); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return into
}

// apply applies a patch as the API server does.
func apply(t testing.TB, raw []byte, ops []Operation) []byte {
	t.Helper()
	encoded := Append(nil, ops)
	decoded, err := jsonpatch.DecodePatch(encoded)
	if err != nil {
		t.Fatalf("%v\npatch %s", err, encoded)
	}
	patched, err := decoded.Apply(raw)
	if err != nil {
		t.Fatalf("%v\npatch %s\nraw %s", err, encoded, raw)
	}
	return patched
}
