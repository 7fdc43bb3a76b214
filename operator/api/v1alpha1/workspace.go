package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkspacePhase says how far a Workspace is.
// +kubebuilder:validation:Enum=Seeding;Active;Failed;Terminating
type WorkspacePhase string

// The phases.
const (
	// WorkspaceSeeding: its repositories are being fetched.
	WorkspaceSeeding WorkspacePhase = "Seeding"
	// WorkspaceActive: runs can use it.
	WorkspaceActive WorkspacePhase = "Active"
	// WorkspaceFailed: it could not be seeded. Delete it, and make another.
	WorkspaceFailed WorkspacePhase = "Failed"
	// WorkspaceTerminating: it is deleted when the run that uses it has ended.
	WorkspaceTerminating WorkspacePhase = "Terminating"
)

// Conditions of a Workspace, and that of a SandboxRun that uses one.
const (
	// ConditionPVCBound says whether the PersistentVolumeClaim has its volume.
	ConditionPVCBound = "PVCBound"
	// ConditionSeeded says whether the repositories are there.
	ConditionSeeded = "Seeded"
	// ConditionWorkspaceReady says whether runs can use the Workspace, and if not, why.
	ConditionWorkspaceReady = "Ready"
	// ConditionWorkspaceBound says whether the run has its Workspace, and if not, who has
	// it, and which place the run has among those that wait.
	ConditionWorkspaceBound = "WorkspaceBound"
)

// Reasons of these conditions.
const (
	// WorkspaceBusy: another run uses the Workspace, or is before this one.
	WorkspaceBusy = "WorkspaceBusy"
	// WorkspaceMissing: there is no Workspace of the name.
	WorkspaceMissing = "WorkspaceMissing"
	// WorkspaceNotReady: the Workspace is not Active.
	WorkspaceNotReady = "WorkspaceNotReady"
	// WorkspaceClaimed: the run has the Workspace.
	WorkspaceClaimed = "Claimed"
	// WorkspaceSeedRejected: the seed names what cannot be fetched.
	WorkspaceSeedRejected = "SeedRejected"
	// WorkspaceSeedFailed: the Job of the seed failed.
	WorkspaceSeedFailed = "SeedFailed"
	// WorkspaceDeletionBlocked: the Workspace is deleted, and waits for the end of a run.
	WorkspaceDeletionBlocked = "DeletionBlocked"
)

// LabelWorkspace has the name of the Workspace on its volume and its seed. Admission keeps it from the Pods of others.
const LabelWorkspace = "admitkit.dev/workspace"

// FinalizerWorkspace is on a Workspace until neither a run nor its seed uses it.
const FinalizerWorkspace = "admitkit.dev/workspace"

// WorkspaceStorage is the volume of a Workspace.
type WorkspaceStorage struct {
	// Size is how much it holds.
	// +optional
	// +kubebuilder:default="1Gi"
	Size *SandboxQuantity `json:"size,omitempty"`
	// Class is the StorageClass. Default: that of the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Class *string `json:"class,omitempty"`
	// AccessMode is how the volume is mounted.
	// +optional
	// +kubebuilder:default=ReadWriteOnce
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteOncePod;ReadWriteMany
	AccessMode string `json:"accessMode,omitempty"`
}

// WorkspaceRepo is a git repository.
// +kubebuilder:validation:XValidation:rule="!has(self.depth) || !has(self.ref) || !self.ref.matches('^[0-9a-f]{40}$')",message="depth cannot be set with a commit in ref: servers give commits with their history only"
type WorkspaceRepo struct {
	// URL is https://HOST/PATH, ssh://[USER@]HOST/PATH or [USER@]HOST:PATH. It has no
	// password, and https no user either: credentials are in credential or credentialsFrom.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`
	// Ref is a branch, a tag or a commit of 40 digits. Default: what the server has as HEAD.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._/+-]*$`
	Ref string `json:"ref,omitempty"`
	// Path is where it goes, below the folder of the Workspace. It can be left out if there
	// is only one repository: it is the folder itself then.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Path string `json:"path,omitempty"`
	// Depth is how many commits of the history to fetch. Default: all.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Depth int32 `json:"depth,omitempty"`
	// CredentialsFrom is a Secret that only the seed gets, as files: for https the keys username and
	// password, for ssh the keys ssh-privatekey and known_hosts. Who makes the Workspace must be allowed to get it. A proxy
	// removes what https sends of it.
	// +optional
	CredentialsFrom *WorkspaceSecret `json:"credentialsFrom,omitempty"`
	// Credential is the name of a credential in a BrokerPolicy that applies to the Workspace, instead of credentialsFrom. The
	// proxy of the seed sets it at the host of a https URL, and the seed does not begin without.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z_]([-A-Za-z0-9_]*[A-Za-z0-9_])?$`
	Credential string `json:"credential,omitempty"`
}

// WorkspaceSecret is a Secret of the namespace.
type WorkspaceSecret struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// WorkspaceSeed is what is in a Workspace at the beginning. Who makes a Workspace with a seed must be allowed to
// create SandboxRunTemplates: it says what runs, and what that reaches.
// +kubebuilder:validation:XValidation:rule="size(self.repos) == 1 || self.repos.all(r, has(r.path) && size(r.path) > 0)",message="each of several repos needs a path"
type WorkspaceSeed struct {
	// Repos are what to fetch.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Repos []WorkspaceRepo `json:"repos"`
	// Image fetches them instead of the operator's. It has them as JSON in ADMITKIT_SEED. It is pulled always, unless it
	// names a digest.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// CAFrom is a key of a ConfigMap with the authorities, in PEM, of servers whose
	// certificates are of none that everybody knows. Who makes the Workspace must be allowed to get it. Not for a seed with
	// a proxy, which verifies the servers.
	// +optional
	CAFrom *SandboxKey `json:"caFrom,omitempty"`
	// Egress is what the seed may reach, by address, and by name through its proxy. Default: nothing, or where
	// BrokerPolicies apply the names that these allow.
	// +optional
	Egress *SandboxEgress `json:"egress,omitempty"`
	// TimeoutSeconds is how long all attempts may take. Default: 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
}

// WorkspaceSpec says what a Workspace is. It cannot be changed.
// +kubebuilder:validation:XValidation:rule="has(self.storage) == has(oldSelf.storage) && (!has(self.storage) || self.storage == oldSelf.storage)",message="storage cannot be changed; make another Workspace"
// +kubebuilder:validation:XValidation:rule="has(self.seed) == has(oldSelf.seed) && (!has(self.seed) || self.seed == oldSelf.seed)",message="seed cannot be changed; make another Workspace"
type WorkspaceSpec struct {
	// Storage is the volume.
	// +optional
	// +kubebuilder:default={}
	Storage WorkspaceStorage `json:"storage,omitempty"`
	// Seed is what is in it at the beginning. Default: nothing.
	// +optional
	Seed *WorkspaceSeed `json:"seed,omitempty"`
}

// WorkspaceHolder is a run that uses a Workspace.
type WorkspaceHolder struct {
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid"`
}

// WorkspaceStatus is what became of a Workspace.
type WorkspaceStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase WorkspacePhase `json:"phase,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ClaimName is the PersistentVolumeClaim.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName,omitempty"`
	// SeedJobUID tells the Job of the seed from another of its name.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	SeedJobUID string `json:"seedJobUID,omitempty"`
	// Interception is how the connections of the seed come to its proxy. Default: it has none.
	// +optional
	Interception InterceptionMode `json:"interception,omitempty"`
	// Egress is what was decided about the egress of the seed, once.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="egress is decided once"
	Egress *EgressDecision `json:"egress,omitempty"`
	// ActiveRun is the run that has the Workspace, until it has ended and its Pods are gone.
	// +optional
	ActiveRun *WorkspaceHolder `json:"activeRun,omitempty"`
	// TotalRuns is how many runs have had it.
	// +optional
	TotalRuns int64 `json:"totalRuns,omitempty"`
}

// Workspace is a volume that outlives the runs that use it, one at a time.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sws,categories={admitkit}
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="metadata.name must have at most 52 characters, because the name of a Job is made of it; choose a shorter one"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Run",type=string,JSONPath=`.status.activeRun.name`
// +kubebuilder:printcolumn:name="Runs",type=integer,JSONPath=`.status.totalRuns`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Workspace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkspaceSpec `json:"spec"`
	// +optional
	Status WorkspaceStatus `json:"status,omitempty"`
}

// WorkspaceList is a list of Workspaces.
// +kubebuilder:object:root=true
type WorkspaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Workspace `json:"items"`
}
