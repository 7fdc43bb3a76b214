package offline

import (
	"cmp"
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/admitkit/admitkit/internal/kinds"
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
	// with its name. nil means that they are unknown.
	NamespaceLabels map[string]string
	// MatchConditions has the results of match conditions by name, for those that only a
	// cluster can evaluate. A result that is given here wins.
	MatchConditions map[string]bool
	// Object and OldObject are JSON. As in Kubernetes, a DELETE has only an old
	// object, and a CREATE and a CONNECT have only a new one.
	Object, OldObject []byte
	User              authenticationv1.UserInfo
	DryRun            bool

	// known is false if Resource and Namespace are guesses.
	known bool
	// named is true if a rule names the resource that was a guess.
	named bool
	// asked is the request of the client, if the objects were converted for a webhook.
	asked *Request
	// served has the versions of the kind.
	served []schema.GroupVersion
	// hasStatus is true if the object's status changes by a subresource alone, and custom
	// is true for a kind of a CustomResourceDefinition.
	hasStatus, custom bool
}

// NoKind is the error for an object of a kind that no API server can have.
type NoKind struct{ Kind schema.GroupVersionKind }

func (n *NoKind) Error() string {
	return fmt.Sprintf("%s has no kind %s: correct the kind or its apiVersion", n.Kind.GroupVersion(), n.Kind.Kind)
}

// NewRequest returns the request for an object. The options of a connection, such
// as a PodExecOptions, make a CONNECT, whatever the operation is. On an UPDATE, old
// is the object before the update; nil means that nothing changed. An object
// without a namespace gets the namespace, unless its kind has none. If the kind is
// unknown, its resource and scope are guessed, and [Request.Matches] returns an
// error if it would depend on the guess.
func (k *Kinds) NewRequest(operation admissionv1.Operation, object, old *unstructured.Unstructured, namespace string) (*Request, error) {
	kind := object.GroupVersionKind()
	if kind.Kind == "" || kind.Version == "" {
		return nil, fmt.Errorf("object %q needs an apiVersion and a kind", object.GetName())
	}
	req := &Request{Operation: operation, Kind: kind, Name: object.GetName()}
	if resource, subresource, is := connects(kind); is {
		req.Resource, req.SubResource, req.known = corev1.SchemeGroupVersion.WithResource(resource), subresource, true
		return req, req.connect(object, namespace)
	}
	if operation == admissionv1.Connect {
		return nil, fmt.Errorf("operation CONNECT needs the options of a connection, such as a PodExecOptions, not a %s", kind.Kind)
	}
	if !kinds.IsResource(kind) {
		for subresource, objects := range objectOf {
			if objects == kind {
				return k.NewSubresourceRequest("", subresource, object, old, namespace)
			}
		}
		return nil, fmt.Errorf("a %s of %s is not an object of its own", kind.Kind, kind.GroupVersion())
	}
	req.Resource = k.Resource(kind)
	served, known := k.Find(kind.GroupKind())
	if !known && kind.Group == "" { // custom kinds have a group
		return nil, &NoKind{kind}
	}
	req.known, req.served = known, served.GroupVersions
	req.hasStatus, req.custom = k.status(kind.GroupKind())
	if !k.Namespaced(kind.GroupKind()) {
		namespace = ""
	}
	object = k.complete(object, namespace)
	req.Namespace = object.GetNamespace()
	if kinds.IsNamespace(kind) {
		req.Namespace = object.GetName()
	}
	switch operation {
	case admissionv1.Create:
		return req, req.encode(object, nil)
	case admissionv1.Update:
		if old != nil {
			old = k.complete(old, namespace)
		}
		return req, req.update(object, old)
	case admissionv1.Delete:
		return req, req.encode(nil, object)
	}
	return nil, fmt.Errorf("operation %q: must be CREATE, UPDATE, DELETE or CONNECT", operation)
}

// Stored returns the request of an object that a cluster stores, in the version in which
// the cluster has it: nothing about it is a guess.
func Stored(operation admissionv1.Operation, kind schema.GroupVersionKind, resource schema.GroupVersionResource, namespace, name string, object, old []byte) *Request {
	if kinds.IsNamespace(kind) {
		namespace = name
	}
	return &Request{Operation: operation, Kind: kind, Resource: resource, Namespace: namespace, Name: name, Object: object, OldObject: old, known: true}
}

// complete returns a copy of an object with what an API server sets before it calls
// a webhook and by which it decides whether to call it.
func (k *Kinds) complete(object *unstructured.Unstructured, namespace string) *unstructured.Unstructured {
	object = object.DeepCopy()
	switch {
	case !k.Namespaced(object.GroupVersionKind().GroupKind()):
		object.SetNamespace("")
	case object.GetNamespace() == "":
		object.SetNamespace(namespace)
	}
	if kinds.IsNamespace(object.GroupVersionKind()) && object.GetName() != "" {
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[corev1.LabelMetadataName] = object.GetName()
		object.SetLabels(labels)
	}
	return object
}

// connect makes the request a CONNECT with these options.
func (r *Request) connect(options *unstructured.Unstructured, namespace string) error {
	r.Operation, r.Namespace = admissionv1.Connect, cmp.Or(options.GetNamespace(), namespace)
	if r.Resource.Resource == "nodes" {
		r.Namespace = ""
	}
	// Options have no metadata. Its name is the name of the Pod, Service or Node.
	options = options.DeepCopy()
	delete(options.Object, "metadata")
	return r.encode(options, nil)
}

// update makes the request an UPDATE of old to object.
func (r *Request) update(object, old *unstructured.Unstructured) error {
	if old == nil {
		return r.encode(object, object)
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
	askedKind, askedResource := kind, resource
	if r.asked != nil {
		askedKind, askedResource = metav1.GroupVersionKind(r.asked.Kind), metav1.GroupVersionResource(r.asked.Resource)
	}
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: uuid.NewUUID(), Operation: r.Operation, DryRun: &r.DryRun, UserInfo: r.User,
			Kind: kind, RequestKind: &askedKind, Resource: resource, RequestResource: &askedResource, SubResource: r.SubResource, RequestSubResource: r.SubResource,
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
