// Package v2 has the kind Alarm as it is stored. controller-gen makes one CRD of both
// versions.
//
// +kubebuilder:object:generate=true
// +groupName=alarm.example.com
package v2

//go:generate controller-gen object crd:crdVersions=v1 paths=../v1;. output:crd:dir=../crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kind.
var GroupVersion = schema.GroupVersion{Group: "alarm.example.com", Version: "v2"}

// Alarm rings every day.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
type Alarm struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              AlarmSpec `json:"spec"`
}

// AlarmSpec is what its user writes.
type AlarmSpec struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=23
	Hour int32 `json:"hour"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=59
	Minute int32 `json:"minute"`
	// Message is what it says.
	Message string `json:"message,omitempty"`
	// Snooze is for how many minutes it can be silenced. v1 does not have it.
	// +kubebuilder:validation:Minimum=0
	Snooze int32 `json:"snooze,omitempty"`
}

// AlarmList is a list of Alarms.
// +kubebuilder:object:root=true
type AlarmList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Alarm `json:"items"`
}
