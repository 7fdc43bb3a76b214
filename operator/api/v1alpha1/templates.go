package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Conditions of a template.
const (
	// ConditionTargetRefExists says whether the target, a workload or a role, exists.
	ConditionTargetRefExists = "TargetRefExists"
	// ConditionTemplateDurationsValid says whether the durations can be parsed
	// and the default does not exceed the maximum.
	ConditionTemplateDurationsValid = "TemplateDurationsValid"
	// ConditionAccessPodValid says whether an access Pod can be made after the target as
	// it is now: a workload may outgrow the template's caps. Only PodAccessTemplates
	// have it.
	ConditionAccessPodValid = "AccessPodValid"
)

// TemplateStatus is the status of a template.
type TemplateStatus struct {
	// ObservedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready says that requests can be made: every condition holds.
	// +optional
	Ready bool `json:"ready"`
	// Conditions are TargetRefExists and TemplateDurationsValid, AccessPodValid of a
	// PodAccessTemplate, and RoleAllowed of a RoleAccessTemplate.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PodAccessTemplateSpec says what the access Pod is modelled on: a workload, or a Pod
// spec of its own.
// +kubebuilder:validation:XValidation:rule="has(self.controllerTargetRef) != has(self.podSpec)",message="one of controllerTargetRef and podSpec must be set, and only one"
type PodAccessTemplateSpec struct {
	// AccessConfig says who gets access, and for how long.
	AccessConfig AccessConfig `json:"accessConfig"`

	// ControllerTargetRef is the workload whose Pod template is copied.
	// +optional
	ControllerTargetRef *ControllerTargetRef `json:"controllerTargetRef,omitempty"`

	// ControllerTargetMutationConfig says how the access Pod differs.
	// +optional
	ControllerTargetMutationConfig *PodTemplateSpecMutationConfig `json:"controllerTargetMutationConfig,omitempty"`

	// PodSpec is the spec of the access Pod, instead of a target. Its fields are
	// those of a Pod's spec; the schema does not repeat them.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	PodSpec *corev1.PodSpec `json:"podSpec,omitempty"`

	// MaxCPU caps the sum of the CPU requests, and of the CPU limits, of an access
	// Pod's containers. A container without a limit gets a share of what the others
	// leave.
	// +optional
	MaxCPU *resource.Quantity `json:"maxCpu,omitempty"`

	// MaxMemory caps the memory in the same way.
	// +optional
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`

	// MaxStorage caps the ephemeral storage in the same way, and the sum of what
	// ephemeral volumes ask for.
	// +optional
	MaxStorage *resource.Quantity `json:"maxStorage,omitempty"`

	// Egress says what the access Pod may reach on the network, and needs the operator's
	// --access-network-policy. Such a Pod has no labels but admitkit's, by which policies
	// select it, and not the host's network. Default: nothing changes, and no policy is made.
	// +optional
	Egress *Egress `json:"egress,omitempty"`
}

// PodAccessTemplate lets engineers have a Pod of their own for a while, made
// after a workload's Pod template.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pat,categories={access,admitkit}
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.controllerTargetRef.name`
// +kubebuilder:printcolumn:name="Max",type=string,JSONPath=`.spec.accessConfig.maxDuration`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PodAccessTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PodAccessTemplateSpec `json:"spec"`
	// +optional
	Status TemplateStatus `json:"status,omitempty"`

	// unreadable says why the spec was not decoded; see UnmarshalJSON.
	unreadable string `json:"-"`
}

// PodAccessTemplateList is a list of PodAccessTemplates.
// +kubebuilder:object:root=true
type PodAccessTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodAccessTemplate `json:"items"`
}

// ExecAccessTemplateSpec says whose Pods access is given to.
type ExecAccessTemplateSpec struct {
	// AccessConfig says who gets access, and for how long.
	AccessConfig AccessConfig `json:"accessConfig"`

	// ControllerTargetRef is the workload whose Pods access is given to, one at a
	// time.
	ControllerTargetRef ControllerTargetRef `json:"controllerTargetRef"`
}

// ExecAccessTemplate lets engineers into a Pod that a workload runs, for a while.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=eat,categories={access,admitkit}
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.controllerTargetRef.name`
// +kubebuilder:printcolumn:name="Max",type=string,JSONPath=`.spec.accessConfig.maxDuration`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ExecAccessTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ExecAccessTemplateSpec `json:"spec"`
	// +optional
	Status TemplateStatus `json:"status,omitempty"`
}

// ExecAccessTemplateList is a list of ExecAccessTemplates.
// +kubebuilder:object:root=true
type ExecAccessTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExecAccessTemplate `json:"items"`
}

// Template is a template of any kind.
//
// +kubebuilder:object:generate=false
type Template interface {
	metav1.Object
	runtime.Object
	GetAccessConfig() *AccessConfig
	// GetTargetRef returns the workload or the role that the template is about, or nil if
	// it has a Pod spec of its own.
	GetTargetRef() *ControllerTargetRef
	GetTemplateStatus() *TemplateStatus
}

var (
	_ Template = (*PodAccessTemplate)(nil)
	_ Template = (*ExecAccessTemplate)(nil)
)

// GetAccessConfig implements [Template].
func (t *PodAccessTemplate) GetAccessConfig() *AccessConfig { return &t.Spec.AccessConfig }

// GetTargetRef implements [Template].
func (t *PodAccessTemplate) GetTargetRef() *ControllerTargetRef { return t.Spec.ControllerTargetRef }

// GetTemplateStatus implements [Template].
func (t *PodAccessTemplate) GetTemplateStatus() *TemplateStatus { return &t.Status }

// GetAccessConfig implements [Template].
func (t *ExecAccessTemplate) GetAccessConfig() *AccessConfig { return &t.Spec.AccessConfig }

// GetTargetRef implements [Template].
func (t *ExecAccessTemplate) GetTargetRef() *ControllerTargetRef { return &t.Spec.ControllerTargetRef }

// GetTemplateStatus implements [Template].
func (t *ExecAccessTemplate) GetTemplateStatus() *TemplateStatus { return &t.Status }
