// Package v1 has the first version of the kind Alarm, which v2 replaces.
//
// +kubebuilder:object:generate=true
// +groupName=alarm.example.com
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kind.
var GroupVersion = schema.GroupVersion{Group: "alarm.example.com", Version: "v1"}

// Alarm rings every day.
// +kubebuilder:object:root=true
type Alarm struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              AlarmSpec `json:"spec"`
}

// AlarmSpec is what its user writes.
type AlarmSpec struct {
	// Time is a time of the day, such as 07:30.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Time string `json:"time"`
	// Text is what it says.
	Text string `json:"text,omitempty"`
}

// AlarmList is a list of Alarms.
// +kubebuilder:object:root=true
type AlarmList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Alarm `json:"items"`
}
