package v1alpha1_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// `kubectl get access` fails for who may not list all that is in it, and engineers have no
// right on transient bindings.
func TestTheCategoryAccessHasWhatEngineersMayList(t *testing.T) {
	paths, err := filepath.Glob("../../config/crd/admitkit.dev_*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		name := crd.Spec.Names.Plural
		if has, want := slices.Contains(crd.Spec.Names.Categories, "access"), strings.Contains(name, "access"); has != want {
			t.Errorf("%s is in the category access: %t, want %t", name, has, want)
		}
	}
}
