package offline

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// Kinds knows how an API server serves each kind: as which resource, in which
// versions, and with or without a namespace. The zero value knows the kinds of
// Kubernetes. [Kinds.Add] adds those of a CustomResourceDefinition.
type Kinds struct {
	mu     sync.RWMutex
	custom map[schema.GroupKind]served
}

// served says how an API server serves a kind.
type served struct {
	resource   string
	namespaced bool
	// groupVersions has every version in which it may be served. The API server
	// converts between them (matchPolicy Equivalent).
	groupVersions []schema.GroupVersion

	// Only for kinds of CustomResourceDefinitions: the subresources, and where the
	// replicas are that scale changes.
	subresources []string
	replicas     string
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

// find says how a kind is served. It returns false for a kind that neither
// Kubernetes nor a CustomResourceDefinition defines.
func (k *Kinds) find(kind schema.GroupKind) (served, bool) {
	k.mu.RLock()
	s, known := k.custom[kind]
	k.mu.RUnlock()
	if known {
		return s, true
	}
	s = served{namespaced: !names(clusterScoped, kind), groupVersions: clientgoscheme.Scheme.VersionsForGroupKind(kind)}
	if version, found := outside[kind]; found {
		s.groupVersions = []schema.GroupVersion{{Group: kind.Group, Version: version}}
	}
	if len(s.groupVersions) == 0 {
		return served{}, false
	}
	s.resource = guess(kind)
	if kind.Kind == "Event" && (kind.Group == "" || kind.Group == "events.k8s.io") {
		// One resource of two groups.
		s.groupVersions = slices.Concat(clientgoscheme.Scheme.VersionsForGroupKind(schema.GroupKind{Kind: "Event"}),
			clientgoscheme.Scheme.VersionsForGroupKind(schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}))
	}
	return s, true
}

// isResource reports whether a kind is a resource of its own. Scale, for example, is
// not: it is the object of a subresource. Unknown kinds are resources.
func isResource(kind schema.GroupVersionKind) bool {
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
func (k *Kinds) Resource(kind schema.GroupVersionKind) schema.GroupVersionResource {
	if s, known := k.find(kind.GroupKind()); known {
		return kind.GroupVersion().WithResource(s.resource)
	}
	return kind.GroupVersion().WithResource(guess(kind.GroupKind()))
}

// Namespaced reports whether objects of a kind have a namespace. Unknown kinds have
// one, like most.
func (k *Kinds) Namespaced(kind schema.GroupKind) bool {
	s, known := k.find(kind)
	return !known || s.namespaced
}

// customVersions returns the versions of the kinds of CustomResourceDefinitions.
func (k *Kinds) customVersions() []schema.GroupVersion {
	k.mu.RLock()
	defer k.mu.RUnlock()
	var all []schema.GroupVersion
	for _, s := range k.custom {
		all = append(all, s.groupVersions...)
	}
	return all
}

// customKinds returns the kinds that CustomResourceDefinitions define in a version.
func (k *Kinds) customKinds(version schema.GroupVersion) []string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	var all []string
	for kind, s := range k.custom {
		if slices.Contains(s.groupVersions, version) {
			all = append(all, kind.Kind)
		}
	}
	return all
}

// kindOf returns the kind of a resource, in the version that Kubernetes prefers.
func (k *Kinds) kindOf(resource schema.GroupResource) (schema.GroupVersionKind, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for kind, s := range k.custom {
		if kind.Group == resource.Group && s.resource == resource.Resource {
			return kind.WithVersion(s.groupVersions[0].Version), true
		}
	}
	kind, known := builtin()[resource]
	return kind, known
}

// builtin returns the resources of Kubernetes with their kinds.
var builtin = sync.OnceValue(func() map[schema.GroupResource]schema.GroupVersionKind {
	all := map[schema.GroupResource]schema.GroupVersionKind{}
	for kind, version := range outside {
		all[schema.GroupResource{Group: kind.Group, Resource: guess(kind)}] = kind.WithVersion(version)
	}
	for _, version := range clientgoscheme.Scheme.PrioritizedVersionsAllGroups() {
		for kind := range clientgoscheme.Scheme.KnownTypes(version) {
			gvk := version.WithKind(kind)
			resource := schema.GroupResource{Group: gvk.Group, Resource: guess(gvk.GroupKind())}
			if _, known := all[resource]; !known && isResource(gvk) && gvk.Version != runtime.APIVersionInternal {
				all[resource] = gvk
			}
		}
	}
	return all
})

// isPluralOf reports whether a resource may be the plural of a kind, as people and
// code generators write it: gateways, indices, chassis.
func isPluralOf(resource, kind string) bool {
	singular := strings.ToLower(kind)
	plurals := []string{guess(schema.GroupKind{Kind: kind}), singular, singular + "s", singular + "es"}
	for ending, plural := range map[string]string{"x": "ces", "ex": "ices", "ix": "ices", "is": "es", "f": "ves", "fe": "ves", "us": "i", "um": "a", "on": "a"} {
		if stem, has := strings.CutSuffix(singular, ending); has {
			plurals = append(plurals, stem+plural)
		}
	}
	return slices.Contains(plurals, resource)
}

// convert decodes what encodes to the same JSON.
func convert(from, into any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// IsCRD reports whether an object is a CustomResourceDefinition.
func IsCRD(object *unstructured.Unstructured) bool {
	kind := object.GroupVersionKind()
	return kind.Group == "apiextensions.k8s.io" && kind.Kind == "CustomResourceDefinition"
}

// Add adds the kind that a CustomResourceDefinition defines.
func (k *Kinds) Add(crd *unstructured.Unstructured) error {
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
	err := convert(crd.Object, &content)
	spec := content.Spec
	s := served{resource: spec.Names.Plural, namespaced: spec.Scope == "Namespaced"}
	for _, version := range spec.Versions {
		if !version.Served {
			continue
		}
		s.groupVersions = append(s.groupVersions, schema.GroupVersion{Group: spec.Group, Version: version.Name})
		if version.Subresources.Status != nil && !slices.Contains(s.subresources, "status") {
			s.subresources = append(s.subresources, "status")
		}
		if scale := version.Subresources.Scale; scale != nil && s.replicas == "" {
			s.subresources, s.replicas = append(s.subresources, "scale"), scale.SpecReplicasPath
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("CustomResourceDefinition %s: %w", crd.GetName(), err)
	case spec.Group == "" || spec.Names.Kind == "" || spec.Names.Plural == "" || len(s.groupVersions) == 0:
		return fmt.Errorf("CustomResourceDefinition %s: needs spec.group, spec.names.kind, spec.names.plural and a served version", crd.GetName())
	case spec.Scope != "Namespaced" && spec.Scope != "Cluster":
		return fmt.Errorf("CustomResourceDefinition %s: spec.scope: %q: must be Namespaced or Cluster", crd.GetName(), spec.Scope)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.custom == nil {
		k.custom = map[schema.GroupKind]served{}
	}
	k.custom[schema.GroupKind{Group: spec.Group, Kind: spec.Names.Kind}] = s
	return nil
}
