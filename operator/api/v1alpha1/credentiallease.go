package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FinalizerLease holds a CredentialLease until its credential is revoked, or has ended by
// itself.
const FinalizerLease = "admitkit.dev/credential-lease"

// LeaseKind is the kind of what a lease is for.
// +kubebuilder:validation:Enum=SandboxRun;Workspace
type LeaseKind string

// The kinds.
const (
	LeaseOfRun       LeaseKind = "SandboxRun"
	LeaseOfWorkspace LeaseKind = "Workspace"
)

// LeaseRun is what a lease is for: a run, or the seed of a Workspace.
type LeaseRun struct {
	// Kind is SandboxRun or Workspace.
	// +optional
	// +kubebuilder:default=SandboxRun
	Kind      LeaseKind `json:"kind,omitempty"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// LeasePod is the Pod whose proxy asked for a lease.
type LeasePod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// CredentialProvider is where a credential comes from.
// +kubebuilder:validation:Enum=Secret;TokenPool;GitHubApp
type CredentialProvider string

// The providers.
const (
	ProviderSecret    CredentialProvider = "Secret"
	ProviderTokenPool CredentialProvider = "TokenPool"
	ProviderGitHubApp CredentialProvider = "GitHubApp"
)

// CredentialLeaseSpec says who has which credential. It has no value of any.
// +kubebuilder:validation:XValidation:rule="self.run == oldSelf.run && self.credential == oldSelf.credential && self.policy == oldSelf.policy && self.provider == oldSelf.provider && has(self.key) == has(oldSelf.key) && (!has(self.key) || self.key == oldSelf.key)",message="only expiresAt and pod of a lease can be changed"
type CredentialLeaseSpec struct {
	// Run is the run, or the Workspace, that it is for.
	Run LeaseRun `json:"run"`
	// Pod is the Pod that asked, if it was one.
	// +optional
	Pod *LeasePod `json:"pod,omitempty"`
	// Policy is the BrokerPolicy, in the namespace of the run or the Workspace, that grants the credential.
	Policy string `json:"policy"`
	// Credential is its name there.
	Credential string `json:"credential"`
	// Provider is where it comes from.
	Provider CredentialProvider `json:"provider"`
	// Key says which of the provider's credentials it is, such as the Secret and the key of a
	// token of a pool.
	// +optional
	Key string `json:"key,omitempty"`
	// ExpiresAt is when the credential has ended at the latest, whatever else fails.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ExpiresAt metav1.MicroTime `json:"expiresAt"`
}

// CredentialLeaseStatus says what came of attempts to revoke.
type CredentialLeaseStatus struct {
	// Attempts is how many failed.
	// +optional
	Attempts int64 `json:"attempts,omitempty"`
	// Message is why the last one failed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// CredentialLease records that a run, or the seed of a Workspace, has a credential. The broker makes it before the
// credential, in its own namespace, so that it outlives the run. To delete it is to revoke
// the credential: it is gone when that has succeeded, or when the credential has ended.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=clease,categories={admitkit}
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.run.namespace`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.run.kind`
// +kubebuilder:printcolumn:name="Run",type=string,JSONPath=`.spec.run.name`
// +kubebuilder:printcolumn:name="Credential",type=string,JSONPath=`.spec.credential`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expiresAt`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.attempts`
type CredentialLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CredentialLeaseSpec `json:"spec"`
	// +optional
	Status CredentialLeaseStatus `json:"status,omitempty"`
}

// CredentialLeaseList is a list of CredentialLeases.
// +kubebuilder:object:root=true
type CredentialLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CredentialLease `json:"items"`
}
