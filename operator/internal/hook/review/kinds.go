package review

import (
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension/manifest"
)

// MaxBytes is how long manifests can be.
const MaxBytes = 10 << 20

// Read reads manifests: YAML documents, JSON, and lists of objects.
func Read(from io.Reader) ([]*unstructured.Unstructured, error) {
	limited := &io.LimitedReader{R: from, N: MaxBytes + 1}
	read, err := manifest.Objects(limited)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrManifests, MaxBytes)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrManifests, err)
	}
	objects := make([]*unstructured.Unstructured, len(read))
	for i, object := range read {
		objects[i] = object.Unstructured
	}
	return objects, nil
}

// plurals has the kind of each resource: those of Kubernetes, of the definitions among the
// manifests, and by guess those of the objects among them.
type plurals map[schema.GroupResource]string

func pluralsOf(objects []*unstructured.Unstructured) plurals {
	p := plurals{}
	for kind := range scheme.Scheme.AllKnownTypes() {
		p.guess(kind)
	}
	for _, object := range objects {
		p.guess(object.GroupVersionKind())
	}
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(object.Object, "spec", "names", "plural")
		kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
		p[schema.GroupResource{Group: group, Resource: plural}] = kind
	}
	return p
}

func (p plurals) guess(kind schema.GroupVersionKind) {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	p[plural.GroupResource()] = kind.Kind
}

func (p plurals) kind(r resource) (string, bool) {
	version, err := schema.ParseGroupVersion(r.APIVersion)
	if err != nil {
		return "", false
	}
	kind, known := p[schema.GroupResource{Group: version.Group, Resource: r.Resource}]
	return kind, known
}

func (p plurals) is(object *unstructured.Unstructured, r resource) bool {
	kind, known := p.kind(r)
	return known && object.GetKind() == kind && object.GetAPIVersion() == r.APIVersion
}
