package kinds_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/internal/kinds"
)

// A CustomResourceDefinition of others decides what a Role that reads its kind says.
func TestAPluralThatIsNoResourceIsRefused(t *testing.T) {
	for _, plural := range []string{"*", "*/*", "widgets/status", "Widgets", "../widgets", "widgets,secrets", "widgets\n"} {
		crd := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Widget", "plural": plural},
			"versions": []any{map[string]any{"name": "v1", "served": true}},
		}}}
		var table kinds.Table
		if err := table.Add(crd); err == nil || !strings.Contains(err.Error(), "spec.names.plural") {
			t.Errorf("%q: %v", plural, err)
		}
	}
}
