package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CompositeController is a controller that makes children of each of its parents.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=compositecontrollers,scope=Cluster,shortName=cc;cctl
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, Metacontroller's own kind"
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.spec.parentResource.resource`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Converged",type=string,JSONPath=`.status.conditions[?(@.type=="Converged")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CompositeController struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CompositeControllerSpec `json:"spec"`
	// +optional
	Status ControllerStatus `json:"status,omitempty"`
}

// CompositeControllerList is a list of them.
// +kubebuilder:object:root=true
type CompositeControllerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CompositeController `json:"items"`
}

// CompositeControllerSpec says which kinds the controller is about, and how its hooks are
// called.
// +kubebuilder:pruning:PreserveUnknownFields
type CompositeControllerSpec struct {
	// ParentResource is the kind of the parents.
	ParentResource ParentResource `json:"parentResource"`
	// ChildResources are the kinds of children that the hook may return.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	ChildResources []ChildResource `json:"childResources,omitempty"`
	// Hooks are the functions that the controller is made of.
	// +optional
	Hooks *CompositeControllerHooks `json:"hooks,omitempty"`
	// ResyncPeriodSeconds is how often the hook is called for a parent although nothing
	// has changed. Default: only when a time in the parent has come, or the hook asks.
	// +optional
	ResyncPeriodSeconds *int32 `json:"resyncPeriodSeconds,omitempty"`
	// GenerateSelector says that children are told by the label controller-uid, and that
	// parents need no selector. Default: false.
	// +optional
	GenerateSelector *bool `json:"generateSelector,omitempty"`
	Common           `json:",inline"`
}

// Common is what both kinds of controllers have.
type Common struct {
	// EndpointConfigs say how to connect to the webhooks of a host.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	EndpointConfigs []EndpointConfig `json:"endpointConfigs,omitempty"`
	// WakeUpAtTimes says that the hook is called just after each future RFC 3339 time that
	// the parent has outside its metadata and status. It is admitkit's. Default: true.
	// +optional
	WakeUpAtTimes *bool `json:"wakeUpAtTimes,omitempty"`
}

// ResourceRule names a kind by its resource.
type ResourceRule struct {
	// APIVersion is group/version, or v1.
	// +kubebuilder:validation:MinLength=1
	APIVersion string `json:"apiVersion"`
	// Resource is the plural in lower case, such as pods.
	// +kubebuilder:validation:MinLength=1
	Resource string `json:"resource"`
}

// ParentResource is the kind of the parents, and which of them.
// +kubebuilder:pruning:PreserveUnknownFields
type ParentResource struct {
	ResourceRule `json:",inline"`
	// RevisionHistory says which fields of a parent make a revision, for the rolling methods.
	// +optional
	RevisionHistory *RevisionHistory `json:"revisionHistory,omitempty"`
	// LabelSelector selects the parents. Default: all.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// IgnoreStatusChanges says that a change of the parent's status alone is no reason to
	// call the hook. Default: false; what the hook itself has returned never is.
	// +optional
	IgnoreStatusChanges *bool `json:"ignoreStatusChanges,omitempty"`
}

// RevisionHistory says which fields of a parent make a revision.
type RevisionHistory struct {
	// FieldPaths are the paths of these fields, such as spec.template. A change of others
	// reaches all children at once. Default: spec.
	// +optional
	FieldPaths []string `json:"fieldPaths,omitempty"`
}

// ChildResource is a kind of children, and how they are updated.
// +kubebuilder:pruning:PreserveUnknownFields
type ChildResource struct {
	ResourceRule `json:",inline"`
	// Optional says that the controller runs without this kind as long as the API server
	// does not have it.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// UpdateStrategy says how. Default: OnDelete.
	// +optional
	UpdateStrategy *UpdateStrategy `json:"updateStrategy,omitempty"`
}

// UpdateMethod says how a child becomes what the hook wants.
// +kubebuilder:validation:Enum="";OnDelete;Recreate;InPlace;RollingRecreate;RollingInPlace
type UpdateMethod string

// The methods.
const (
	// OnDelete leaves a child as it was made, until somebody deletes it.
	OnDelete UpdateMethod = "OnDelete"
	// Recreate deletes a child that differs, and makes it anew.
	Recreate UpdateMethod = "Recreate"
	// InPlace changes it.
	InPlace UpdateMethod = "InPlace"
	// RollingRecreate recreates one at a time.
	RollingRecreate UpdateMethod = "RollingRecreate"
	// RollingInPlace changes one at a time.
	RollingInPlace UpdateMethod = "RollingInPlace"
)

// UpdateStrategy says how children are updated.
// +kubebuilder:pruning:PreserveUnknownFields
type UpdateStrategy struct {
	// Method is how. Default: OnDelete.
	// +optional
	Method UpdateMethod `json:"method,omitempty"`
	// StatusChecks say when a child is good enough for the next to be updated, with the
	// rolling methods.
	// +optional
	StatusChecks StatusChecks `json:"statusChecks,omitempty"`
}

// StatusChecks are conditions that all have to hold.
type StatusChecks struct {
	// Conditions are conditions of the child's status.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Conditions []ConditionCheck `json:"conditions,omitempty"`
}

// ConditionCheck holds if the status has the condition, with the status and reason that
// are given.
type ConditionCheck struct {
	// Type is its type.
	Type string `json:"type"`
	// Status is its status. Default: any.
	// +optional
	Status *string `json:"status,omitempty"`
	// Reason is its reason. Default: any.
	// +optional
	Reason *string `json:"reason,omitempty"`
}

// CompositeControllerHooks are the hooks of a CompositeController.
// +kubebuilder:pruning:PreserveUnknownFields
type CompositeControllerHooks struct {
	// Customize says which other objects the hooks want to see.
	// +optional
	Customize *Hook `json:"customize,omitempty"`
	// Sync says what status and children a parent should have.
	// +optional
	Sync *Hook `json:"sync,omitempty"`
	// Finalize does so for a parent that is being deleted, or selected no more.
	// +optional
	Finalize *Hook `json:"finalize,omitempty"`
	// PreUpdateChild has no effect, as in Metacontroller; the condition Honored says so.
	// +optional
	PreUpdateChild *Hook `json:"preUpdateChild,omitempty"`
	// PostUpdateChild has no effect, as in Metacontroller; the condition Honored says so.
	// +optional
	PostUpdateChild *Hook `json:"postUpdateChild,omitempty"`
}

// DecoratorController is a controller that attaches something to objects of others.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=decoratorcontrollers,scope=Cluster,shortName=dec;decorators
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, Metacontroller's own kind"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Converged",type=string,JSONPath=`.status.conditions[?(@.type=="Converged")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DecoratorController struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DecoratorControllerSpec `json:"spec"`
	// +optional
	Status ControllerStatus `json:"status,omitempty"`
}

// DecoratorControllerList is a list of them.
// +kubebuilder:object:root=true
type DecoratorControllerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DecoratorController `json:"items"`
}

// DecoratorControllerSpec says which kinds the controller is about, and how its hooks are
// called.
// +kubebuilder:pruning:PreserveUnknownFields
type DecoratorControllerSpec struct {
	// Resources are the objects that are decorated.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Resources []DecoratedResource `json:"resources"`
	// Attachments are the kinds of objects that the hook may return.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Attachments []ChildResource `json:"attachments,omitempty"`
	// Hooks are the functions that the controller is made of.
	// +optional
	Hooks *DecoratorControllerHooks `json:"hooks,omitempty"`
	// ResyncPeriodSeconds is how often the hook is called for an object although nothing
	// has changed. Default: only when a time in the object has come, or the hook asks.
	// +optional
	ResyncPeriodSeconds *int32 `json:"resyncPeriodSeconds,omitempty"`
	Common              `json:",inline"`
}

// DecoratedResource is a kind, and which objects of it.
// +kubebuilder:pruning:PreserveUnknownFields
type DecoratedResource struct {
	ResourceRule `json:",inline"`
	// LabelSelector selects by labels. Default: all.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// AnnotationSelector selects by annotations. Default: all.
	// +optional
	AnnotationSelector *AnnotationSelector `json:"annotationSelector,omitempty"`
	// IgnoreStatusChanges says that a change of the status alone is no reason to call the
	// hook. Default: false; what the hook itself has returned never is.
	// +optional
	IgnoreStatusChanges *bool `json:"ignoreStatusChanges,omitempty"`
}

// AnnotationSelector is to annotations what a label selector is to labels.
type AnnotationSelector struct {
	// MatchAnnotations are annotations that have to be there with these values.
	// +optional
	MatchAnnotations map[string]string `json:"matchAnnotations,omitempty"`
	// MatchExpressions have to hold for the annotations.
	// +optional
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// DecoratorControllerHooks are the hooks of a DecoratorController.
// +kubebuilder:pruning:PreserveUnknownFields
type DecoratorControllerHooks struct {
	// Customize says which other objects the hooks want to see.
	// +optional
	Customize *Hook `json:"customize,omitempty"`
	// Sync says what an object should have.
	// +optional
	Sync *Hook `json:"sync,omitempty"`
	// Finalize does so for an object that is being deleted, or selected no more.
	// +optional
	Finalize *Hook `json:"finalize,omitempty"`
}

// ControllerStatus says how the controller is. Ready: its hooks are called. Converged: all
// its objects are as its hook wants them. Honored: no field of its spec is without effect.
type ControllerStatus struct {
	// ObservedGeneration is the generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready, Converged and Honored.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ControllerRevision is a revision of a parent, of which children are: those of the latest
// have been updated, those of others not yet. The controller writes it, and its users only
// read it.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=controllerrevisions,scope=Namespaced
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, Metacontroller's own kind"
type ControllerRevision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// ParentPatch are the fields of the parent that make the revision, as they were.
	// +kubebuilder:pruning:PreserveUnknownFields
	ParentPatch runtime.RawExtension `json:"parentPatch"`
	// Children are those that are at this revision.
	// +optional
	Children []ControllerRevisionChildren `json:"children,omitempty"`
}

// ControllerRevisionChildren are children of one kind.
type ControllerRevisionChildren struct {
	// APIGroup is the group of the kind.
	APIGroup string `json:"apiGroup"`
	// Kind is the kind.
	Kind string `json:"kind"`
	// Names are their names.
	Names []string `json:"names"`
}

// ControllerRevisionList is a list of them.
// +kubebuilder:object:root=true
type ControllerRevisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ControllerRevision `json:"items"`
}
