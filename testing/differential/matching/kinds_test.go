package matching_test

import (
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
)

// kind is one kind as an API server serves it.
type kind struct {
	gvk         schema.GroupVersionKind
	resource    string
	subresource string // of a connection
	namespaced  bool
	custom      bool
}

func (k kind) gvr() schema.GroupVersionResource {
	return k.gvk.GroupVersion().WithResource(k.resource)
}

// builtin returns the kinds of Kubernetes, as the clients of client-go have them,
// which are generated from the markers of the API types: CoreV1().Pods(namespace) has
// a namespace, CoreV1().Nodes() has none, and the resource is the method's name.
func builtin(t *testing.T) []kind {
	t.Helper()
	var kinds []kind
	for group := range reflect.TypeFor[kubernetes.Interface]().Methods() {
		if group.Name == "Discovery" {
			continue
		}
		for client := range group.Type.Out(0).Methods() {
			if client.Name == "RESTClient" {
				continue
			}
			create, found := client.Type.Out(0).MethodByName("Create")
			if !found {
				continue // an eviction, which is a subresource
			}
			object := reflect.New(create.Type.Out(0).Elem()).Interface().(runtime.Object)
			gvks, _, err := clientgoscheme.Scheme.ObjectKinds(object)
			if err != nil {
				t.Fatalf("%s.%s: %v", group.Name, client.Name, err)
			}
			kinds = append(kinds, kind{gvk: gvks[0], resource: strings.ToLower(client.Name), namespaced: client.Type.NumIn() == 1})
		}
	}
	if len(kinds) < 100 {
		t.Fatalf("client-go has only %d kinds", len(kinds))
	}
	return kinds
}

// connections are the options of CONNECT.
func connections() []kind {
	of := func(name, resource, subresource string) kind {
		return kind{gvk: corev1.SchemeGroupVersion.WithKind(name), resource: resource, subresource: subresource, namespaced: resource != "nodes"}
	}
	return []kind{
		of("PodExecOptions", "pods", "exec"), of("PodAttachOptions", "pods", "attach"), of("PodPortForwardOptions", "pods", "portforward"),
		of("PodProxyOptions", "pods", "proxy"), of("ServiceProxyOptions", "services", "proxy"), of("NodeProxyOptions", "nodes", "proxy"),
	}
}

// crd is a CustomResourceDefinition.
func crd(name, group, scope string, served, unserved []string) *unstructured.Unstructured {
	plural, singular, _ := strings.Cut(name, "/")
	var versions []any
	for _, version := range served {
		versions = append(versions, map[string]any{"name": version, "served": true, "storage": version == served[0]})
	}
	for _, version := range unserved {
		versions = append(versions, map[string]any{"name": version, "served": false, "storage": false})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group, "scope": scope, "versions": versions,
			"names": map[string]any{"plural": plural, "kind": singular},
		},
	}}
}

// customs are CustomResourceDefinitions with what makes guesses wrong: plurals that
// are no rule, several versions, no namespace, and the name of a kind of Kubernetes.
var customs = []*unstructured.Unstructured{
	crd("gateways/Gateway", "example.com", "Namespaced", []string{"v1", "v1beta1"}, []string{"v1alpha1"}),
	crd("indices/Index", "example.com", "Namespaced", []string{"v2", "v1"}, nil),
	crd("chassis/Chassis", "example.com", "Cluster", []string{"v1"}, nil),
	crd("widgets/Widget", "example.com", "Namespaced", []string{"v1"}, nil),
	crd("tenants/Tenant", "other.io", "Cluster", []string{"v1", "v1beta1"}, nil),
	crd("namespaces/Namespace", "other.io", "Namespaced", []string{"v1"}, nil),
	crd("nodes/Node", "other.io", "Namespaced", []string{"v1"}, nil),
}

func custom() []kind {
	var kinds []kind
	for _, c := range customs {
		group, _, _ := unstructured.NestedString(c.Object, "spec", "group")
		scope, _, _ := unstructured.NestedString(c.Object, "spec", "scope")
		plural, _, _ := unstructured.NestedString(c.Object, "spec", "names", "plural")
		name, _, _ := unstructured.NestedString(c.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(c.Object, "spec", "versions")
		for _, v := range versions {
			version := v.(map[string]any)
			if version["served"] == true {
				gvk := schema.GroupVersionKind{Group: group, Version: version["name"].(string), Kind: name}
				kinds = append(kinds, kind{gvk: gvk, resource: plural, namespaced: scope == "Namespaced", custom: true})
			}
		}
	}
	return kinds
}

// TestEveryKindOfClientGoIsKnown fails when Kubernetes gets a kind without a
// namespace, or a plural, that internal/offline does not know.
func TestEveryKindOfClientGoIsKnown(t *testing.T) {
	known := offline.KindsOf(&kinds.Table{})
	for _, k := range builtin(t) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(k.gvk)
		object.SetName("x")
		req, err := known.NewRequest(admissionv1.Create, object, nil, "ns")
		if err != nil {
			t.Errorf("%s: %v", k.gvk, err)
			continue
		}
		inNamespace := req.Namespace == "ns"
		if req.Resource != k.gvr() || inNamespace != k.namespaced {
			t.Errorf("%s: got the resource %s, namespaced %v; client-go has %s, %v", k.gvk, req.Resource.Resource, inNamespace, k.resource, k.namespaced)
		}
	}
	for _, k := range connections() {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(k.gvk)
		object.SetName("x")
		req, err := known.NewRequest(admissionv1.Connect, object, nil, "ns")
		if err != nil || req.Resource != k.gvr() || req.SubResource != k.subresource || (req.Namespace == "ns") != k.namespaced {
			t.Errorf("%s: %+v, %v", k.gvk, req, err)
		}
	}
}
