package memcluster

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	mergepatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/internal/kinds"
)

// The strategies of k8s.io/kubernetes/pkg/registry say what the kinds of Kubernetes have in
// common with few others. Kinds are listed by group.

// withGeneration lists the kinds that count the changes of their spec.
var withGeneration = map[string]string{
	"":                             "Pod PodTemplate ReplicationController",
	"admissionregistration.k8s.io": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
	"apiextensions.k8s.io":         "CustomResourceDefinition",
	"apps":                         "DaemonSet Deployment ReplicaSet StatefulSet",
	"autoscaling":                  "HorizontalPodAutoscaler",
	"batch":                        "CronJob Job",
	"discovery.k8s.io":             "EndpointSlice",
	"flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
	"lifecycle.k8s.io":             "Eviction EvictionRequest",
	"networking.k8s.io":            "Ingress IngressClass NetworkPolicy",
	"policy":                       "PodDisruptionBudget",
	"resource.k8s.io":              "DeviceClass DeviceTaintRule ResourceSlice",
	"scheduling.k8s.io":            "PriorityClass",
}

// versioned lists the kinds of which an update needs a resource version.
var versioned = map[string]string{
	"admissionregistration.k8s.io": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
	"apiextensions.k8s.io":         "CustomResourceDefinition",
	"certificates.k8s.io":          "ClusterTrustBundle PodCertificateRequest",
	"coordination.k8s.io":          "Lease LeaseCandidate",
	"internal.apiserver.k8s.io":    "StorageVersion",
	"lifecycle.k8s.io":             "Eviction EvictionRequest",
	"node.k8s.io":                  "RuntimeClass",
	"policy":                       "PodDisruptionBudget",
	"resource.k8s.io":              "ResourcePoolStatusRequest",
	"scheduling.k8s.io":            "CompositePodGroup PodGroup Workload",
	"storage.k8s.io":               "CSIDriver CSINode CSIStorageCapacity VolumeAttachment",
	"storagemigration.k8s.io":      "StorageVersionMigration",
}

// putCreates lists the kinds of which a PUT creates an object.
var putCreates = map[string]string{
	"":                          "Endpoints Event LimitRange Service",
	"coordination.k8s.io":       "Lease LeaseCandidate",
	"node.k8s.io":               "RuntimeClass",
	"rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
}

// firstPhase has the phase of a new object.
var firstPhase = map[schema.GroupKind]string{
	{Kind: "Namespace"}:             string(corev1.NamespaceActive),
	{Kind: "PersistentVolume"}:      string(corev1.VolumePending),
	{Kind: "PersistentVolumeClaim"}: string(corev1.ClaimPending),
	{Kind: "Pod"}:                   string(corev1.PodPending),
}

func lists(byGroup map[string]string, kind schema.GroupKind) bool {
	return slices.Contains(strings.Fields(byGroup[kind.Group]), kind.Kind)
}

func isCustom(k *kinds.Table, kind schema.GroupKind) bool {
	_, custom := k.Custom()[kind]
	return custom
}

func hasGeneration(k *kinds.Table, kind schema.GroupKind) bool {
	return isCustom(k, kind) || lists(withGeneration, kind)
}

func hasStatus(k *kinds.Table, kind schema.GroupKind) bool {
	return slices.Contains(k.Subresources(kind), "status")
}

// kindOf returns the kind of a call's resource, or of an object if the resource is unknown.
func (c *Cluster) kindOf(p *call, object *unstructured.Unstructured) schema.GroupKind {
	if kind, known := c.Kinds.Of(p.resource.GroupResource()); known {
		return kind.GroupKind()
	}
	return object.GroupVersionKind().GroupKind()
}

// findSubresource returns the API server's error for a subresource that a kind lacks.
func (c *Cluster) findSubresource(p *call) error {
	kind, known := c.Kinds.Of(p.resource.GroupResource())
	switch {
	case p.subresource == "" || !known:
		return nil
	case slices.Contains([]string{"binding", "log", "scale", "token"}, p.subresource):
		return fmt.Errorf("the cluster in memory does not serve %s/%s", p.resource.Resource, p.subresource)
	case !slices.Contains(c.Kinds.Subresources(kind.GroupKind()), p.subresource):
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
	}
	return nil
}

// mayCreate reports whether a call creates an object that it names.
func (c *Cluster) mayCreate(p *call) bool {
	kind, known := c.Kinds.Of(p.resource.GroupResource())
	return p.subresource == "" && (p.Method == http.MethodPatch && isApply(p) || p.Method == http.MethodPut && known && lists(putCreates, kind.GroupKind()))
}

func (c *Cluster) create(p *call) (any, error) {
	object, err := p.object()
	if err != nil {
		return nil, err
	}
	return c.insert(p, object)
}

// insert stores a new object.
func (c *Cluster) insert(p *call, object *unstructured.Unstructured) (any, error) {
	kind := c.kindOf(p, object)
	if object.GetNamespace() != p.namespace && object.GetNamespace() != "" && p.namespace != "" {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	object.SetNamespace(p.namespace)
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + utilrand.String(5))
	}
	if errs := validation.ValidateObjectMetaAccessor(object, p.namespace != "", nameOf(kind), field.NewPath("metadata")); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind, object.GetName(), errs)
	}
	key := p.collection + "/" + object.GetName()
	if c.objects[key] != nil {
		return nil, apierrors.NewAlreadyExists(p.resource.GroupResource(), object.GetName())
	}
	if object.GetResourceVersion() != "" && !p.dryRun {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "resourceVersion should not be set on objects to be created"}}
	}
	mergeStringData(object)
	object.SetUID(uuid.NewUUID())
	object.SetCreationTimestamp(metav1.Now())
	object.SetDeletionTimestamp(nil)
	object.SetDeletionGracePeriodSeconds(nil)
	if hasGeneration(c.Kinds, kind) {
		object.SetGeneration(1)
	}
	if hasStatus(c.Kinds, kind) && kind.Kind != "Node" { // a kubelet creates its Node with a status
		delete(object.Object, "status")
	}
	if phase := firstPhase[kind]; phase != "" {
		object.Object["status"] = map[string]any{"phase": phase}
	}
	if !p.dryRun {
		c.put(key, object)
	}
	return object.Object, nil
}

// nameOf returns the rule for the names of a kind.
func nameOf(kind schema.GroupKind) validation.ValidateNameFunc {
	switch {
	case kind.Kind == "Namespace":
		return validation.NameIsDNSLabel
	case kind.Group == "rbac.authorization.k8s.io", kind.Kind == "APIService", kind.Kind == "ClusterTrustBundle", kind.Kind == "IPAddress":
		return nameIsPathSegment
	}
	return validation.NameIsDNSSubdomain
}

func nameIsPathSegment(name string, _ bool) []string {
	if name == "." || name == ".." || strings.ContainsAny(name, "/%") {
		return []string{"must be a segment of a path"}
	}
	return nil
}

func (c *Cluster) update(p *call, key string, live *unstructured.Unstructured) (any, error) {
	var object *unstructured.Unstructured
	var err error
	switch {
	case p.Method == http.MethodPut || live == nil:
		object, err = p.object()
	default:
		object, err = c.patched(p, live)
	}
	if err == nil {
		err = p.checkName(object)
	}
	if err == nil && p.Method == http.MethodPut {
		err = p.checkUID(object, live)
	}
	if err != nil {
		return nil, err
	}
	if live == nil {
		return c.insert(p, object)
	}
	object.SetNamespace(p.namespace)
	kind := c.kindOf(p, object)
	if err := c.checkVersion(p, kind, object, live); err != nil {
		return nil, err
	}
	object = c.prepared(p, kind, object, live)
	if errs := validation.ValidateObjectMetaAccessorUpdate(object, live, field.NewPath("metadata")); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind, p.name, errs)
	}
	switch {
	case same(object.Object, live.Object): // which keeps its resource version
	case p.dryRun:
	case isReleased(live, object):
		c.remove(key)
	default:
		c.put(key, object)
	}
	return object.Object, nil
}

// checkUID returns the API server's error for an update of another object of this name.
func (p *call) checkUID(object, live *unstructured.Unstructured) error {
	if live == nil {
		live = &unstructured.Unstructured{}
	}
	if uid := object.GetUID(); uid != "" && uid != live.GetUID() {
		return apierrors.NewConflict(p.resource.GroupResource(), p.name, fmt.Errorf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, live.GetUID()))
	}
	return nil
}

// checkVersion returns the API server's error for an update of an older object.
func (c *Cluster) checkVersion(p *call, kind schema.GroupKind, object, live *unstructured.Unstructured) error {
	resource := p.resource.GroupResource()
	switch version := object.GetResourceVersion(); {
	case version == "" && (isCustom(c.Kinds, kind) || lists(versioned, kind)):
		invalid := field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")
		return apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: resource.Resource}, p.name, field.ErrorList{invalid})
	case version != "" && version != live.GetResourceVersion():
		return apierrors.NewConflict(resource, p.name, errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// checkName returns the API server's error for an object of another name than the path has.
func (p *call) checkName(object *unstructured.Unstructured) error {
	switch namespace := object.GetNamespace(); {
	case object.GetName() == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", p.name))
	case object.GetName() != p.name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", object.GetName(), p.name))
	case p.namespace != "" && namespace != "" && namespace != p.namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", namespace, p.namespace))
	}
	return nil
}

// prepared returns an object of an update with what the update cannot change, as the
// PrepareForUpdate of its kind.
func (c *Cluster) prepared(p *call, kind schema.GroupKind, object, live *unstructured.Unstructured) *unstructured.Unstructured {
	custom := isCustom(c.Kinds, kind)
	switch {
	case p.subresource == "status" && custom:
		object = with(live, object, "status")
	case p.subresource == "status":
		object = with(live, object, "status", "metadata")
		switch kind.Kind {
		case "Deployment":
			object.SetLabels(live.GetLabels())
		case "Pod":
			object.SetOwnerReferences(live.GetOwnerReferences())
		}
	case p.subresource == "ephemeralcontainers":
		added, found, _ := unstructured.NestedFieldCopy(object.Object, "spec", "ephemeralContainers")
		if object = live.DeepCopy(); found {
			_ = unstructured.SetNestedField(object.Object, added, "spec", "ephemeralContainers") // fails without a spec alone
		}
	case hasStatus(c.Kinds, kind):
		object = with(object, live, "status")
	}
	mergeStringData(object)
	if len(object.GetLabels()) == 0 { // as typed objects have them
		object.SetLabels(nil)
	}
	if len(object.GetAnnotations()) == 0 {
		object.SetAnnotations(nil)
	}
	object.SetResourceVersion(live.GetResourceVersion())
	if object.GetUID() == "" {
		object.SetUID(live.GetUID())
	}
	object.SetCreationTimestamp(live.GetCreationTimestamp())
	if live.GetDeletionTimestamp() != nil { // nothing takes a deletion back
		object.SetDeletionTimestamp(live.GetDeletionTimestamp())
		object.SetDeletionGracePeriodSeconds(live.GetDeletionGracePeriodSeconds())
	}
	object.SetGeneration(live.GetGeneration())
	changed := !same(content(object), content(live)) ||
		kind.Kind == "Deployment" && !equality.Semantic.DeepEqual(object.GetAnnotations(), live.GetAnnotations())
	if changed && p.subresource != "status" && hasGeneration(c.Kinds, kind) {
		object.SetGeneration(live.GetGeneration() + 1)
	}
	return object
}

// mergeStringData puts the stringData of a Secret, which nobody can read, into its data.
func mergeStringData(object *unstructured.Unstructured) {
	if object.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("Secret") {
		return
	}
	texts, _, _ := unstructured.NestedStringMap(object.Object, "stringData")
	for key, text := range texts {
		data, _ := object.Object["data"].(map[string]any)
		if data == nil {
			data = map[string]any{}
		}
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
		object.Object["data"] = data
	}
	delete(object.Object, "stringData")
}

// with returns an object with these fields of another one.
func with(object, other *unstructured.Unstructured, names ...string) *unstructured.Unstructured {
	object = object.DeepCopy()
	for _, name := range names {
		delete(object.Object, name)
		if value, found := other.Object[name]; found {
			object.Object[name] = value
		}
	}
	return object
}

// content is an object without metadata.
func content(object *unstructured.Unstructured) map[string]any {
	return with(object, &unstructured.Unstructured{}, "metadata").Object
}

// same reports whether two values are equal. A null is as good as nothing.
func same(a, b map[string]any) bool {
	return equality.Semantic.DeepEqual(withoutNulls(a), withoutNulls(b))
}

func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		for name, inner := range value {
			if inner != nil {
				kept[name] = withoutNulls(inner)
			}
		}
		return kept
	case []any:
		kept := make([]any, len(value))
		for i := range value {
			kept[i] = withoutNulls(value[i])
		}
		return kept
	}
	return value
}

func isApply(p *call) bool {
	return strings.HasPrefix(p.Header.Get("Content-Type"), string(types.ApplyPatchType))
}

// patched applies a patch. A server-side apply is a merge patch here: field owners
// do not exist.
func (c *Cluster) patched(p *call, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	before, err := json.Marshal(live.Object)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch kind := types.PatchType(p.Header.Get("Content-Type")); {
	case kind == types.JSONPatchType:
		decoded, err := jsonpatch.Decode(p.body)
		if err != nil {
			return nil, err
		}
		if after, err = decoded.Apply(before); err != nil {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
	case kind == types.StrategicMergePatchType && c.scheme.Recognizes(live.GroupVersionKind()):
		typed, err := c.scheme.New(live.GroupVersionKind())
		if err != nil {
			return nil, err
		}
		if after, err = strategicpatch.StrategicMergePatch(before, p.body, typed); err != nil {
			return nil, err
		}
	default:
		patch, err := yaml.YAMLToJSON(p.body)
		if err != nil {
			return nil, err
		}
		if after, err = mergepatch.MergePatch(before, patch); err != nil {
			return nil, err
		}
	}
	object := &unstructured.Unstructured{}
	return object, utiljson.Unmarshal(after, &object.Object)
}
