package offline

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/admitkit/admitkit/extension"
)

// Request is a client's request to the API server.
type Request struct {
	Operation admissionv1.Operation
	// Kind is the kind of the object or, on a CONNECT, of the options.
	Kind     schema.GroupVersionKind
	Resource schema.GroupVersionResource
	// SubResource is "exec", for example. It is empty for the object itself.
	SubResource     string
	Namespace, Name string
	// NamespaceLabels are the labels of the namespace. The engine adds the label
	// with its name.
	NamespaceLabels map[string]string
	// Object and OldObject are JSON. As in Kubernetes, a DELETE has only an old
	// object, and a CREATE and a CONNECT have only a new one.
	Object, OldObject []byte
	User              authenticationv1.UserInfo
	DryRun            bool
}

// connects maps the kind of a connection's options to the resource that they
// connect to.
var connects = map[string]struct{ resource, subresource string }{
	"PodExecOptions":        {"pods", "exec"},
	"PodAttachOptions":      {"pods", "attach"},
	"PodPortForwardOptions": {"pods", "portforward"},
	"PodProxyOptions":       {"pods", "proxy"},
	"ServiceProxyOptions":   {"services", "proxy"},
	"NodeProxyOptions":      {"nodes", "proxy"},
}

// clusterScoped has the built-in kinds without a namespace.
var clusterScoped = []string{
	"Namespace", "Node", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "StorageClass",
	"PriorityClass", "IngressClass", "RuntimeClass", "CSIDriver", "CSINode", "VolumeAttachment", "APIService", "CertificateSigningRequest",
	"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "FlowSchema", "PriorityLevelConfiguration",
}

// NewRequest returns the request for an object. The options of a connection, such
// as a PodExecOptions, make a CONNECT, whatever the operation is. On an UPDATE, old
// is the object before the update; nil means that nothing changed. An object
// without a namespace gets the namespace, unless its kind has none.
func NewRequest(operation admissionv1.Operation, object, old *unstructured.Unstructured, namespace string) (*Request, error) {
	kind := object.GroupVersionKind()
	if kind.Kind == "" || kind.Version == "" {
		return nil, fmt.Errorf("object %q needs an apiVersion and a kind", object.GetName())
	}
	req := &Request{Operation: operation, Kind: kind, Name: object.GetName()}
	if to, isConnection := connects[kind.Kind]; isConnection && kind.GroupVersion() == corev1.SchemeGroupVersion {
		req.Resource, req.SubResource = corev1.SchemeGroupVersion.WithResource(to.resource), to.subresource
		return req, req.connect(object, namespace)
	}
	if operation == admissionv1.Connect {
		return nil, fmt.Errorf("operation CONNECT needs the options of a connection, such as a PodExecOptions, not a %s", kind.Kind)
	}
	req.Resource, _ = meta.UnsafeGuessKindToResource(kind)
	object = object.DeepCopy()
	if slices.Contains(clusterScoped, kind.Kind) {
		namespace = ""
	} else if object.GetNamespace() == "" {
		object.SetNamespace(namespace)
	}
	req.Namespace = object.GetNamespace()
	if kind.Kind == "Namespace" {
		req.Namespace = object.GetName()
	}
	switch operation {
	case admissionv1.Create:
		return req, req.encode(object, nil)
	case admissionv1.Update:
		return req, req.update(object, old, namespace)
	case admissionv1.Delete:
		return req, req.encode(nil, object)
	}
	return nil, fmt.Errorf("operation %q: must be CREATE, UPDATE, DELETE or CONNECT", operation)
}

// connect makes the request a CONNECT with these options.
func (r *Request) connect(options *unstructured.Unstructured, namespace string) error {
	r.Operation, r.Namespace = admissionv1.Connect, cmp.Or(options.GetNamespace(), namespace)
	// Options have no metadata. Its name is the name of the Pod, Service or Node.
	options = options.DeepCopy()
	delete(options.Object, "metadata")
	return r.encode(options, nil)
}

// update makes the request an UPDATE of old to object.
func (r *Request) update(object, old *unstructured.Unstructured, namespace string) error {
	if old == nil {
		return r.encode(object, object)
	}
	old = old.DeepCopy()
	if old.GetNamespace() == "" {
		old.SetNamespace(namespace)
	}
	if old.GetName() != object.GetName() || old.GetNamespace() != object.GetNamespace() || old.GroupVersionKind() != r.Kind {
		return fmt.Errorf("the old object of an UPDATE must be the same object: %s %s/%s is not %s %s/%s",
			old.GetKind(), old.GetNamespace(), old.GetName(), r.Kind.Kind, object.GetNamespace(), object.GetName())
	}
	return r.encode(object, old)
}

func (r *Request) encode(object, old *unstructured.Unstructured) (err error) {
	for _, o := range []struct {
		object *unstructured.Unstructured
		into   *[]byte
	}{{object, &r.Object}, {old, &r.OldObject}} {
		if o.object == nil {
			continue
		}
		if *o.into, err = json.Marshal(o.object.Object); err != nil {
			return fmt.Errorf("encoding %s %s: %w", r.Kind.Kind, r.Name, err)
		}
	}
	return nil
}

// review returns the AdmissionReview of the request with the current object.
func (r *Request) review(object []byte) *admissionv1.AdmissionReview {
	kind, resource := metav1.GroupVersionKind(r.Kind), metav1.GroupVersionResource(r.Resource)
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: uuid.NewUUID(), Operation: r.Operation, DryRun: &r.DryRun, UserInfo: r.User,
			Kind: kind, RequestKind: &kind, Resource: resource, RequestResource: &resource, SubResource: r.SubResource, RequestSubResource: r.SubResource,
			Namespace: r.Namespace, Name: r.Name,
			Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: r.OldObject},
			Options: runtime.RawExtension{Raw: r.options()},
		},
	}
}

// options returns the options of the client's call. An API server has a kind of
// options for each operation.
func (r *Request) options() []byte {
	kind := map[admissionv1.Operation]string{admissionv1.Create: "CreateOptions", admissionv1.Update: "UpdateOptions", admissionv1.Delete: "DeleteOptions"}[r.Operation]
	if kind == "" {
		return nil
	}
	dryRun := ""
	if r.DryRun {
		dryRun = `,"dryRun":["All"]`
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":"meta.k8s.io/v1"%s}`, kind, dryRun)
}

// matches reports whether an API server would send the request to a webhook with
// the scope.
func (r *Request) matches(scope extension.Scope) (bool, error) {
	if !slices.ContainsFunc(scope.Rules, r.matchesRule) {
		return false, nil
	}
	namespace := labels.Set{}
	maps.Copy(namespace, r.NamespaceLabels)
	namespace[corev1.LabelMetadataName] = r.Namespace
	if matches, err := selects(scope.NamespaceSelector, namespace); err != nil || r.Namespace != "" && !matches {
		return false, err
	}
	if scope.ObjectSelector == nil {
		return true, nil
	}
	// One match is enough, so that no update escapes by changing the labels.
	for _, object := range [][]byte{r.Object, r.OldObject} {
		var labelled metav1.PartialObjectMetadata
		if len(object) == 0 || json.Unmarshal(object, &labelled) != nil {
			continue
		}
		if matches, err := selects(scope.ObjectSelector, labelled.Labels); err != nil || matches {
			return matches, err
		}
	}
	return false, nil
}

func selects(selector *metav1.LabelSelector, set labels.Set) (bool, error) {
	if selector == nil {
		return true, nil
	}
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && compiled.Matches(set), err
}

func (r *Request) matchesRule(rule admissionregistrationv1.RuleWithOperations) bool {
	has := func(values []string, value string) bool {
		return slices.Contains(values, "*") || slices.Contains(values, value)
	}
	operations := make([]string, len(rule.Operations))
	for i, operation := range rule.Operations {
		operations[i] = string(operation)
	}
	if !has(operations, string(r.Operation)) || !has(rule.APIGroups, r.Resource.Group) || !has(rule.APIVersions, r.Resource.Version) {
		return false
	}
	return slices.ContainsFunc(rule.Resources, func(pattern string) bool {
		resource, subresource, _ := strings.Cut(pattern, "/")
		if pattern == "*/*" {
			return true
		}
		return (resource == "*" || resource == r.Resource.Resource) && (subresource == "*" || subresource == r.SubResource)
	})
}
