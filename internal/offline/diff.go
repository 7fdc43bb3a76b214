package offline

import (
	"fmt"

	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/yaml"
)

// Diff returns a unified diff of the YAML of two objects, which are given as JSON.
// It is empty if the objects are equal.
func Diff(before, after []byte) (string, error) {
	var lines [2][]string
	for i, object := range [][]byte{before, after} {
		text, err := yaml.JSONToYAML(object)
		if err != nil {
			return "", fmt.Errorf("comparing objects: %w", err)
		}
		lines[i] = difflib.SplitLines(string(text))
		// SplitLines returns an empty line after the last line break.
		lines[i] = lines[i][:len(lines[i])-1]
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: lines[0], B: lines[1], Context: 3})
}
