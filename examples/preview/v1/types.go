// Package v1 has the kind PreviewEnvironment. controller-gen, kubebuilder's generator,
// makes the CRD and the deep copies from it.
//
// +kubebuilder:object:generate=true
// +groupName=preview.example.com
package v1

//go:generate controller-gen object crd:crdVersions=v1 paths=. output:crd:dir=../crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kind.
var GroupVersion = schema.GroupVersion{Group: "preview.example.com", Version: "v1"}

// PreviewEnvironment runs an image until its time to live is over.
// +kubebuilder:object:root=true
type PreviewEnvironment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PreviewEnvironmentSpec `json:"spec"`
}

// PreviewEnvironmentSpec is what its user writes.
type PreviewEnvironmentSpec struct {
	// +kubebuilder:validation:MinLength=1
	Image string `json:"image"`
	// TTL begins with the creation. Default: 8h; at most 72h.
	// +kubebuilder:validation:Format=duration
	TTL *metav1.Duration `json:"ttl,omitempty"`
	// RequestedBy is the user who created it, which is the default.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot change"
	RequestedBy string `json:"requestedBy,omitempty"`
}

// PreviewEnvironmentList is a list of PreviewEnvironments.
// +kubebuilder:object:root=true
type PreviewEnvironmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PreviewEnvironment `json:"items"`
}
