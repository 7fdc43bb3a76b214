package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Reasons of the condition Completed of an Interactive run that was ended.
const (
	// InteractiveTerminatedIdle: nobody has used it for the time that it may be idle.
	InteractiveTerminatedIdle = "InteractiveTerminatedIdle"
	// InteractiveTerminatedDetach: everybody has left it, and nobody came back.
	InteractiveTerminatedDetach = "InteractiveTerminatedDetach"
	// InteractiveTerminatedMaxLifetime: its time is over, whoever uses it.
	InteractiveTerminatedMaxLifetime = "InteractiveTerminatedMaxLifetime"
)

// ConditionActivityKnown says whether the controller knows who uses an Interactive run. While it does not, only
// maxLifetimeSeconds ends the run.
const ConditionActivityKnown = "ActivityKnown"

// Reasons of this condition.
const (
	// ActivityRead: the AuditEvents about the Pod are read.
	ActivityRead = "Read"
	// ActivityUnreadable: AuditEvents cannot be read.
	ActivityUnreadable = "Unreadable"
)

// InteractiveLimits are how long an Interactive run lives at most. Of several that are over, the first of these is its end.
// +kubebuilder:validation:XValidation:rule="!has(self.idleSeconds) || !has(self.detachIdleSeconds) || self.detachIdleSeconds <= self.idleSeconds",message="detachIdleSeconds must not be more than idleSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.maxLifetimeSeconds) || (!has(self.idleSeconds) || self.idleSeconds <= self.maxLifetimeSeconds) && (!has(self.detachSeconds) || self.detachSeconds <= self.maxLifetimeSeconds)",message="idleSeconds and detachSeconds must not be more than maxLifetimeSeconds"
type InteractiveLimits struct {
	// IdleSeconds is how long nobody may begin a session, counted from when the last one began, or from the start of the
	// run. A recorded session counts until its end. Default: 1800.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	IdleSeconds *int64 `json:"idleSeconds,omitempty"`
	// DetachIdleSeconds replaces idleSeconds while it is known that nobody is in the run. Default: 900.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	DetachIdleSeconds *int64 `json:"detachIdleSeconds,omitempty"`
	// DetachSeconds is how long a run goes on when the last recorded session has ended. Default: 300.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	DetachSeconds *int64 `json:"detachSeconds,omitempty"`
	// MaxLifetimeSeconds is how long a run lives, from when its Job is there, whoever uses it. Default: 86400.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	MaxLifetimeSeconds *int64 `json:"maxLifetimeSeconds,omitempty"`
}

// InteractiveStatus is how an Interactive run is used.
type InteractiveStatus struct {
	// Limits are those of the run. They are written before there is a Job, and never change.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="limits are decided once"
	Limits InteractiveLimits `json:"limits"`
	// LastActivityTime is when a session last began, or a recorded one ended.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	LastActivityTime *metav1.Time `json:"lastActivityTime,omitempty"`
	// DetachedTime is when the last recorded session ended.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	DetachedTime *metav1.Time `json:"detachedTime,omitempty"`
	// AttachedSessions is how many recorded sessions have not ended.
	// +optional
	AttachedSessions int32 `json:"attachedSessions,omitempty"`
	// EndsTime is when the run ends if nobody uses it until then, and EndsReason why it does.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	EndsTime *metav1.Time `json:"endsTime,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	EndsReason string `json:"endsReason,omitempty"`
}
