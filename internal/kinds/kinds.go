// Package kinds knows, without a cluster, how an API server serves each kind.
package kinds

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// Table knows how an API server serves each kind: as which resource, in which
// versions, and with or without a namespace. The zero value knows the kinds of
// Kubernetes. [Table.Add] adds those of a CustomResourceDefinition.
type Table struct {
	mu     sync.RWMutex
	custom map[schema.GroupKind]Served
	// definitions are the CustomResourceDefinitions of custom.
	definitions []*unstructured.Unstructured
}

// Served says how an API server serves a kind.
type Served struct {
	Resource   string
	Namespaced bool
	// GroupVersions has every version in which it may be served. The API server
	// converts between them (matchPolicy Equivalent).
	GroupVersions []schema.GroupVersion

	// Only for kinds of CustomResourceDefinitions: the subresources, and where the
	// replicas are that scale changes.
	Subresources []string
	Replicas     string
}

// clusterScoped lists the kinds of Kubernetes without a namespace, by group, because
// a Go scheme has no scopes. Tests compare the list with the clients of client-go
// (testing/differential) and with the discovery of a real API server.
var clusterScoped = map[string]string{
	"":                             "ComponentStatus Namespace Node PersistentVolume",
	"admissionregistration.k8s.io": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
	"apiextensions.k8s.io":         "CustomResourceDefinition",
	"apiregistration.k8s.io":       "APIService",
	"authentication.k8s.io":        "SelfSubjectReview TokenReview",
	"authorization.k8s.io":         "SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
	"certificates.k8s.io":          "CertificateSigningRequest ClusterTrustBundle",
	"flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
	"internal.apiserver.k8s.io":    "StorageVersion",
	"networking.k8s.io":            "IPAddress IngressClass ServiceCIDR",
	"node.k8s.io":                  "RuntimeClass",
	"rbac.authorization.k8s.io":    "ClusterRole ClusterRoleBinding",
	"resource.k8s.io":              "DeviceClass DeviceTaintRule ResourcePoolStatusRequest ResourceSlice",
	"scheduling.k8s.io":            "PriorityClass",
	"storage.k8s.io":               "CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass",
	"storagemigration.k8s.io":      "StorageVersionMigration",
}

// unlisted lists the kinds of Kubernetes that are resources but have no list kind.
var unlisted = map[string]string{
	"":                      "Binding",
	"authentication.k8s.io": "SelfSubjectReview TokenReview",
	"authorization.k8s.io":  "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
}

// outside lists the kinds of Kubernetes that the scheme of client-go lacks, with
// their version.
var outside = map[schema.GroupKind]string{
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: "v1",
	{Group: "apiregistration.k8s.io", Kind: "APIService"}:             "v1",
}

func names(byGroup map[string]string, kind schema.GroupKind) bool {
	return slices.Contains(strings.Fields(byGroup[kind.Group]), kind.Kind)
}

// Find says how a kind is served. It returns false for a kind that neither
// Kubernetes nor a CustomResourceDefinition defines.
func (t *Table) Find(kind schema.GroupKind) (Served, bool) {
	t.mu.RLock()
	s, known := t.custom[kind]
	t.mu.RUnlock()
	if known {
		return s, true
	}
	s = Served{Namespaced: !names(clusterScoped, kind), GroupVersions: clientgoscheme.Scheme.VersionsForGroupKind(kind)}
	if version, found := outside[kind]; found {
		s.GroupVersions = []schema.GroupVersion{{Group: kind.Group, Version: version}}
	}
	if len(s.GroupVersions) == 0 {
		return Served{}, false
	}
	s.Resource = guess(kind)
	if kind.Kind == "Event" && (kind.Group == "" || kind.Group == "events.k8s.io") {
		// One resource of two groups.
		s.GroupVersions = slices.Concat(clientgoscheme.Scheme.VersionsForGroupKind(schema.GroupKind{Kind: "Event"}),
			clientgoscheme.Scheme.VersionsForGroupKind(schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}))
	}
	return s, true
}

// IsResource reports whether a kind is a resource of its own. Scale, for example, is
// not: it is the object of a subresource. Unknown kinds are resources.
func IsResource(kind schema.GroupVersionKind) bool {
	list := kind
	list.Kind += "List"
	_, found := outside[kind.GroupKind()]
	return found || names(unlisted, kind.GroupKind()) || clientgoscheme.Scheme.Recognizes(list) || !clientgoscheme.Scheme.Recognizes(kind)
}

// guess returns the plural that almost every kind has.
func guess(kind schema.GroupKind) string {
	resource, _ := meta.UnsafeGuessKindToResource(kind.WithVersion(""))
	return resource.Resource
}

// Resource returns the resource of a kind. It is a guess if the kind is unknown.
func (t *Table) Resource(kind schema.GroupVersionKind) schema.GroupVersionResource {
	if s, known := t.Find(kind.GroupKind()); known {
		return kind.GroupVersion().WithResource(s.Resource)
	}
	return kind.GroupVersion().WithResource(guess(kind.GroupKind()))
}

// Namespaced reports whether objects of a kind have a namespace. Unknown kinds have
// one, like most.
func (t *Table) Namespaced(kind schema.GroupKind) bool {
	s, known := t.Find(kind)
	return !known || s.Namespaced
}

// Custom returns the kinds that CustomResourceDefinitions define.
func (t *Table) Custom() map[schema.GroupKind]Served {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.custom)
}

// Of returns the kind of a resource, in the version that Kubernetes prefers.
func (t *Table) Of(resource schema.GroupResource) (schema.GroupVersionKind, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for kind, s := range t.custom {
		if kind.Group == resource.Group && s.Resource == resource.Resource {
			return kind.WithVersion(s.GroupVersions[0].Version), true
		}
	}
	kind, known := Builtin()[resource]
	return kind, known
}

// Builtin returns the resources of Kubernetes with their kinds.
var Builtin = sync.OnceValue(func() map[schema.GroupResource]schema.GroupVersionKind {
	all := map[schema.GroupResource]schema.GroupVersionKind{}
	for kind, version := range outside {
		all[schema.GroupResource{Group: kind.Group, Resource: guess(kind)}] = kind.WithVersion(version)
	}
	for _, version := range clientgoscheme.Scheme.PrioritizedVersionsAllGroups() {
		for kind := range clientgoscheme.Scheme.KnownTypes(version) {
			gvk := version.WithKind(kind)
			resource := schema.GroupResource{Group: gvk.Group, Resource: guess(gvk.GroupKind())}
			if _, known := all[resource]; !known && IsResource(gvk) && gvk.Version != runtime.APIVersionInternal {
				all[resource] = gvk
			}
		}
	}
	return all
})

// IsPluralOf reports whether a resource may be the plural of a kind, as people and
// code generators write it: gateways, indices, chassis.
func IsPluralOf(resource, kind string) bool {
	singular := strings.ToLower(kind)
	plurals := []string{guess(schema.GroupKind{Kind: kind}), singular + "s", singular + "es"}
	if strings.HasSuffix(singular, "s") { // else it is the singular, by mistake
		plurals = append(plurals, singular)
	}
	for ending, plural := range map[string]string{"x": "ces", "ex": "ices", "ix": "ices", "is": "es", "f": "ves", "fe": "ves", "us": "i", "um": "a", "on": "a"} {
		if stem, has := strings.CutSuffix(singular, ending); has {
			plurals = append(plurals, stem+plural)
		}
	}
	return slices.Contains(plurals, resource)
}

// IsCRD reports whether an object is a CustomResourceDefinition.
func IsCRD(object *unstructured.Unstructured) bool {
	kind := object.GroupVersionKind()
	return kind.Group == "apiextensions.k8s.io" && kind.Kind == "CustomResourceDefinition"
}

// Add adds the kind that a CustomResourceDefinition defines.
func (t *Table) Add(crd *unstructured.Unstructured) error {
	var content struct {
		Spec struct {
			Group string
			Names struct{ Kind, Plural string }
			Scope string
			// Only v1 has versions as a list alone. v1beta1 is no longer served.
			Versions []struct {
				Name         string
				Served       bool
				Subresources struct {
					Status *struct{}
					Scale  *struct{ SpecReplicasPath string }
				}
			}
		}
	}
	text, err := json.Marshal(crd.Object)
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	spec := content.Spec
	s := Served{Resource: spec.Names.Plural, Namespaced: spec.Scope == "Namespaced"}
	for _, version := range spec.Versions {
		if !version.Served {
			continue
		}
		s.GroupVersions = append(s.GroupVersions, schema.GroupVersion{Group: spec.Group, Version: version.Name})
		if version.Subresources.Status != nil && !slices.Contains(s.Subresources, "status") {
			s.Subresources = append(s.Subresources, "status")
		}
		if scale := version.Subresources.Scale; scale != nil && s.Replicas == "" {
			s.Subresources, s.Replicas = append(s.Subresources, "scale"), scale.SpecReplicasPath
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("CustomResourceDefinition %s: %w", crd.GetName(), err)
	case spec.Group == "" || spec.Names.Kind == "" || spec.Names.Plural == "" || len(s.GroupVersions) == 0:
		return fmt.Errorf("CustomResourceDefinition %s: needs spec.group, spec.names.kind, spec.names.plural and a served version", crd.GetName())
	case len(validation.IsDNS1035Label(spec.Names.Plural)) > 0: // it becomes a resource of a Role, where * is all
		return fmt.Errorf("CustomResourceDefinition %s: spec.names.plural: %q: %s", crd.GetName(), spec.Names.Plural, strings.Join(validation.IsDNS1035Label(spec.Names.Plural), ", "))
	case spec.Scope != "Namespaced" && spec.Scope != "Cluster":
		return fmt.Errorf("CustomResourceDefinition %s: spec.scope: %q: must be Namespaced or Cluster", crd.GetName(), spec.Scope)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.custom == nil {
		t.custom = map[schema.GroupKind]Served{}
	}
	t.custom[schema.GroupKind{Group: spec.Group, Kind: spec.Names.Kind}] = s
	t.definitions = append(t.definitions, crd)
	return nil
}

// Definitions returns the CustomResourceDefinitions that were added.
func (t *Table) Definitions() []*unstructured.Unstructured {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.definitions)
}

// ReadRule returns the right to read a kind through a cache, and whether the kind has
// namespaces. It returns false for a kind that the table does not know.
func (t *Table) ReadRule(kind schema.GroupKind) (rule rbacv1.PolicyRule, namespaced, known bool) {
	s, known := t.Find(kind)
	return rbacv1.PolicyRule{APIGroups: []string{kind.Group}, Resources: []string{s.Resource}, Verbs: []string{"get", "list", "watch"}}, s.Namespaced, known
}

// IsNamespace reports whether a kind is that of namespaces.
func IsNamespace(kind schema.GroupVersionKind) bool {
	return kind == corev1.SchemeGroupVersion.WithKind("Namespace")
}
