package pod

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/internal/testkit"
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

// hostilePatches returns patches that are refused, and would cost much otherwise.
func hostilePatches() [][]v1alpha1.JSONPatchOperation {
	const annotation = "/metadata/annotations/a"
	copies := func(n int, path func(i int) string) []v1alpha1.JSONPatchOperation {
		return repeated(n, func(i int) v1alpha1.JSONPatchOperation {
			return v1alpha1.JSONPatchOperation{Operation: "copy", From: "/spec", Path: path(i)}
		})
	}
	var patches [][]v1alpha1.JSONPatchOperation
	for n := 1; n <= testkit.Long(20, 4); n++ {
		large := v1alpha1.JSONPatchOperation{Operation: "add", Path: annotation, Value: value(strings.Repeat("<", n*10_000))}
		patches = append(patches,
			copies(12*n, func(i int) string { return fmt.Sprint("/spec/x", i) }),
			copies(12*n+1, func(int) string { return "/spec/containers/-" }),
			append([]v1alpha1.JSONPatchOperation{large}, repeated(200, func(i int) v1alpha1.JSONPatchOperation {
				return v1alpha1.JSONPatchOperation{Operation: "copy", From: annotation, Path: fmt.Sprint(annotation, i)}
			})...),
			repeated(maxOperations+n, func(int) v1alpha1.JSONPatchOperation {
				return v1alpha1.JSONPatchOperation{Operation: "test", Path: "/kind", Value: value("Pod")}
			}),
			append(repeated(255, func(i int) v1alpha1.JSONPatchOperation {
				return v1alpha1.JSONPatchOperation{Operation: "move", From: "/spec", Path: "/spec" + strings.Repeat("/x", i%n+1)}
			}), large),
		)
	}
	return patches
}

func TestNoPatchOfATemplateCostsMuch(t *testing.T) {
	// The race detector takes ten times as long.
	mostTime, mostMemory := testkit.Long(50*time.Millisecond, time.Second), testkit.Long[uint64](10<<20, 40<<20)
	var worst time.Duration
	var largest uint64
	patches := hostilePatches()
	for i, patch := range patches {
		took := time.Hour
		for range 3 { // the machine may be busy
			var err error
			once, allocated := testkit.Cost(func() {
				_, err = New(metav1.ObjectMeta{}, &v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{
					ControllerTargetMutationConfig: &v1alpha1.PodTemplateSpecMutationConfig{PatchSpecOperations: patch},
				}}, busy(), time.Hour)
			})
			took, largest = min(took, once), max(largest, allocated)
			if err == nil || !strings.Contains(err.Error(), "patchSpecOperations: ") {
				t.Errorf("patch %d ends with %v", i, err)
			}
		}
		worst = max(worst, took)
	}
	testkit.Figure("template.patches", float64(len(patches)), "patches")
	testkit.Figure("template.patch_worst_ms", testkit.Milliseconds(worst), "ms")
	testkit.Figure("template.patch_worst_mb", float64(largest)/(1<<20), "MB")
	if worst > mostTime || largest > mostMemory {
		t.Errorf("one takes %s, one %d bytes", worst, largest)
	}
}

func TestAPatchHasLimitsThatItsErrorNames(t *testing.T) {
	large := value(strings.Repeat("x", 200_000))
	for want, operations := range map[string][]v1alpha1.JSONPatchOperation{
		"257 operations, at most 256": repeated(257, func(int) v1alpha1.JSONPatchOperation {
			return v1alpha1.JSONPatchOperation{Operation: "test", Path: "/kind", Value: value("Pod")}
		}),
		"the accumulated size": {
			{Operation: "add", Path: "/metadata/annotations/a", Value: large},
			{Operation: "copy", From: "/metadata/annotations/a", Path: "/metadata/annotations/b"},
			{Operation: "copy", From: "/metadata/annotations/a", Path: "/metadata/annotations/c"},
		},
		"the result has": repeated(8, func(i int) v1alpha1.JSONPatchOperation {
			return v1alpha1.JSONPatchOperation{Operation: "add", Path: fmt.Sprint("/metadata/annotations/a", i), Value: large}
		}),
	} {
		template := busy().Template
		err := applyPatch(&corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, operations)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
