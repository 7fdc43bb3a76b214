package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/kinds"
)

// operationOf returns the operation of requests for a subresource.
func operationOf(subresource string) admissionv1.Operation {
	switch subresource {
	case "attach", "exec", "portforward", "proxy":
		return admissionv1.Connect
	case "binding", "eviction", "token":
		return admissionv1.Create
	}
	return admissionv1.Update
}

var scale = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}

// objectOf has the kind of the object of a subresource, where that is not the object
// above it.
var objectOf = map[string]schema.GroupVersionKind{
	"binding":  {Version: "v1", Kind: "Binding"},
	"eviction": {Group: "policy", Version: "v1", Kind: "Eviction"},
	"scale":    scale,
	"token":    {Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"},
}

// parentOf has the one resource that has a subresource.
var parentOf = map[string]string{"binding": "pods", "eviction": "pods", "token": "serviceaccounts"}

// NewSubresourceRequest returns the request for a subresource of an object: "status",
// "ephemeralcontainers", "scale". The object is the one above the subresource, from which
// the object of a scale or an eviction is made. Otherwise it is the object of the
// subresource, such as a Scale, and subresource names what it scales, such as
// "deployments.apps/scale". An empty operation means the one that the subresource has.
// See [Kinds.NewRequest] for the rest.
func (k *Kinds) NewSubresourceRequest(operation admissionv1.Operation, subresource string, object, old *unstructured.Unstructured, namespace string) (*Request, error) {
	of, name, named := strings.Cut(subresource, "/")
	if !named {
		of, name = "", subresource
	}
	if operation == "" {
		operation = operationOf(name)
	}
	if operation != operationOf(name) {
		return nil, fmt.Errorf("operation %s: requests for the subresource %s are %s", operation, name, operationOf(name))
	}
	if operation == admissionv1.Connect {
		return nil, fmt.Errorf("subresource %s: give the options of the connection, such as a PodExecOptions, as the object", name)
	}
	parent, err := k.parent(of, name, object)
	if err != nil {
		return nil, err
	}
	if subresources := k.Subresources(parent.GroupKind()); !slices.Contains(subresources, name) {
		return nil, fmt.Errorf("a %s has no subresource %s: it has %s", parent.Kind, name, list(subresources))
	}
	if object, err = k.subobject(parent, name, object); err != nil {
		return nil, err
	}
	if old != nil {
		if old, err = k.subobject(parent, name, old); err != nil {
			return nil, err
		}
	}
	if !k.Namespaced(parent.GroupKind()) {
		namespace = ""
	}
	served, _ := k.Find(parent.GroupKind())
	req := &Request{
		Operation: operation, Kind: object.GroupVersionKind(), Resource: k.Resource(parent), SubResource: name, Name: object.GetName(),
		known: true, served: served.GroupVersions,
	}
	req.hasStatus, req.custom = k.status(parent.GroupKind())
	object = k.complete(object, namespace)
	req.Namespace = object.GetNamespace()
	if kinds.IsNamespace(parent) {
		req.Namespace = object.GetName()
	}
	if operation == admissionv1.Create {
		return req, req.encode(object, nil)
	}
	if old != nil {
		old = k.complete(old, namespace)
	}
	return req, req.update(object, old)
}

// parent returns the kind above a subresource: the one whose resource is named, the only
// one that has it, or that of the object.
func (k *Kinds) parent(of, subresource string, object *unstructured.Unstructured) (schema.GroupVersionKind, error) {
	isObject := object.GroupVersionKind() == objectOf[subresource]
	if of == "" && isObject {
		of = parentOf[subresource]
	}
	if of == "" {
		if isObject {
			return schema.GroupVersionKind{}, fmt.Errorf("name the resource of the %s, such as deployments.apps/%s, or give that object itself", object.GetKind(), subresource)
		}
		return object.GroupVersionKind(), nil
	}
	resource := schema.ParseGroupResource(of)
	kind, found := k.Of(resource)
	if !found {
		return kind, fmt.Errorf("resource %s is not known: it is none of Kubernetes, and no CustomResourceDefinition defines it", resource)
	}
	if !isObject && object.GroupVersionKind().GroupKind() != kind.GroupKind() {
		return kind, fmt.Errorf("%s/%s takes a %s, not a %s", of, subresource, kind.Kind, object.GetKind())
	}
	if !isObject {
		kind = object.GroupVersionKind()
	}
	return kind, nil
}

// subobject returns the object of a subresource, made of the object above if it is that.
func (k *Kinds) subobject(parent schema.GroupVersionKind, subresource string, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	kind, differs := objectOf[subresource]
	if !differs || object.GroupVersionKind() == kind {
		return object, nil
	}
	made := &unstructured.Unstructured{Object: map[string]any{}}
	made.SetGroupVersionKind(kind)
	// As the API server's: without labels.
	made.SetName(object.GetName())
	made.SetNamespace(object.GetNamespace())
	switch subresource {
	case "eviction":
		return made, nil
	case "scale":
		made.SetUID(object.GetUID())
		made.SetResourceVersion(object.GetResourceVersion())
		return made, errors.Join(k.copyReplicas(parent, object, made), copySelector(object, made))
	}
	return nil, fmt.Errorf("the subresource %s takes a %s, not a %s", subresource, kind.Kind, object.GetKind())
}

func (k *Kinds) copyReplicas(parent schema.GroupVersionKind, object, made *unstructured.Unstructured) error {
	path := []string{"spec", "replicas"}
	if custom := k.Custom()[parent.GroupKind()]; custom.Replicas != "" {
		path = strings.Split(strings.TrimPrefix(custom.Replicas, "."), ".")
	}
	wanted, found, err := unstructured.NestedInt64(object.Object, path...)
	if err != nil {
		return fmt.Errorf("the replicas of %s: %w", object.GetName(), err)
	}
	if !found {
		wanted = 1 // the default of the kinds of Kubernetes
	}
	running, _, err := unstructured.NestedInt64(object.Object, "status", "replicas")
	return errors.Join(err, unstructured.SetNestedField(made.Object, wanted, "spec", "replicas"),
		unstructured.SetNestedField(made.Object, running, "status", "replicas"))
}

func copySelector(object, made *unstructured.Unstructured) error {
	content, found, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "selector")
	if err != nil || !found || content == nil {
		return err
	}
	selector := &metav1.LabelSelector{}
	if err := convert(content, selector); err != nil {
		return fmt.Errorf("the selector of %s: %w", object.GetName(), err)
	}
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 { // of a ReplicationController
		if err := convert(content, &selector.MatchLabels); err != nil {
			return fmt.Errorf("the selector of %s: %w", object.GetName(), err)
		}
	}
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return fmt.Errorf("the selector of %s: %w", object.GetName(), err)
	}
	return unstructured.SetNestedField(made.Object, compiled.String(), "status", "selector")
}

// connects reports whether a kind is that of the options of a connection, and of which.
func connects(kind schema.GroupVersionKind) (resource, subresource string, is bool) {
	to, known := host.Connections[kind.Kind]
	if !known || kind.Group != "" || kind.Version != "v1" {
		return "", "", false
	}
	resource, subresource, _ = strings.Cut(to, "/")
	return resource, subresource, true
}

// list writes names in a sentence.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Sorted(slices.Values(names))
	return strings.Join(names, ", ")
}

// convert decodes what encodes to the same JSON.
func convert(from, into any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
