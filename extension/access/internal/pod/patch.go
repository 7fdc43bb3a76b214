package pod

import (
	"encoding/json"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// The limits of a patch, beside the API's: at most 256 operations. Its author is not
// trusted by the process that applies it, and each copy can double the Pod.
const (
	// maxOperations is the limit of the API.
	maxOperations = 256
	// maxCopied is the most bytes that all copies may add.
	maxCopied = 256 << 10
	// maxPatched is the most bytes of the result; etcd takes no larger object by
	// default (etcd --max-request-bytes).
	maxPatched = 3 << 19
)

// applyPatch applies a JSON Patch to the spec, labels and annotations of a Pod.
// Unknown fields are errors, so that a misspelt path does not go unnoticed.
func applyPatch(pod *corev1.Pod, operations []v1alpha1.JSONPatchOperation) error {
	if len(operations) == 0 {
		return nil
	}
	if len(operations) > maxOperations {
		return fmt.Errorf("%d operations, at most %d are allowed", len(operations), maxOperations)
	}
	raw, err := json.Marshal(operationsOf(operations))
	if err != nil {
		return err
	}
	patch, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return err
	}
	before, err := json.Marshal(&corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec,
	})
	if err != nil {
		return err
	}
	// Negative indices are not in RFC 6902.
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.AccumulatedCopySizeLimit = maxCopied
	after, err := patch.ApplyWithOptions(before, options)
	if err != nil {
		return err
	}
	if len(after) > maxPatched {
		return fmt.Errorf("the result has %d bytes, at most %d are allowed", len(after), maxPatched)
	}
	var patched corev1.Pod
	strict, err := kjson.UnmarshalStrict(after, &patched)
	if err != nil {
		return fmt.Errorf("the result is not a Pod: %w", err)
	}
	if len(strict) > 0 {
		return fmt.Errorf("the result is not a Pod: %w", strict[0])
	}
	if len(patched.Spec.Containers) == 0 {
		return fmt.Errorf("the result has no containers")
	}
	pod.Labels, pod.Annotations, pod.Spec = patched.Labels, patched.Annotations, patched.Spec
	return nil
}

// operationsOf writes null where an operation needs a value and has none: the API
// type does not tell a null from an absent value.
func operationsOf(operations []v1alpha1.JSONPatchOperation) []map[string]any {
	result := make([]map[string]any, len(operations))
	for i, o := range operations {
		operation := map[string]any{"op": o.Operation, "path": o.Path}
		switch o.Operation {
		case "add", "replace", "test":
			operation["value"] = o.Value
		case "move", "copy":
			operation["from"] = o.From
		}
		result[i] = operation
	}
	return result
}
