package offline

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	creator "gomodules.xyz/jsonpatch/v2"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/jsonpatch"
)

// Fields names the fields in which two objects differ, which are given as JSON.
func Fields(before, after []byte) (string, error) {
	operations, err := creator.CreatePatch(before, after)
	if err != nil {
		return "", fmt.Errorf("comparing objects: %w", err)
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return "", fmt.Errorf("comparing objects: %w", err)
	}
	return jsonpatch.Fields(patch), nil
}

// Diff returns a unified diff of the YAML of two objects, which are given as JSON.
// It is empty if the objects are equal.
func Diff(before, after []byte) (string, error) {
	var texts [2]string
	for i, object := range [][]byte{before, after} {
		text, err := yaml.JSONToYAML(object)
		if err != nil {
			return "", fmt.Errorf("comparing objects: %w", err)
		}
		texts[i] = string(text)
	}
	diff := udiff.Unified("before", "after", texts[0], texts[1])
	return strings.TrimPrefix(diff, "--- before\n+++ after\n"), nil
}
