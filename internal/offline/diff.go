package offline

import (
	"fmt"

	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/yaml"
)

// Diff returns what changed between two objects in JSON, as a unified diff of
// their YAML; empty if nothing did.
func Diff(before, after []byte) (string, error) {
	var lines [2][]string
	for i, object := range [][]byte{before, after} {
		text, err := yaml.JSONToYAML(object)
		if err != nil {
			return "", fmt.Errorf("comparing objects: %w", err)
		}
		lines[i] = difflib.SplitLines(string(text))
		// SplitLines makes a line of what is after the last line break.
		lines[i] = lines[i][:len(lines[i])-1]
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: lines[0], B: lines[1], Context: 3})
}
