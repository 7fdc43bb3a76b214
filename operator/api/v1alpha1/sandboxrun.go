package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// SandboxMode says how a run is used.
// +kubebuilder:validation:Enum=Batch;Interactive
type SandboxMode string

// The modes.
const (
	// SandboxBatch runs to its end by itself.
	SandboxBatch SandboxMode = "Batch"
	// SandboxInteractive is there for people, who exec into it, until nobody uses it any more.
	SandboxInteractive SandboxMode = "Interactive"
)

// SandboxPhase says how far a run is.
// +kubebuilder:validation:Enum=Pending;Running;Succeeded;Failed;Cancelled
type SandboxPhase string

// The phases. The last three are terminal: nothing follows them.
const (
	// SandboxPending: its Pod does not run yet. The conditions say what it waits for.
	SandboxPending SandboxPhase = "Pending"
	// SandboxRunning: its Pod runs.
	SandboxRunning SandboxPhase = "Running"
	// SandboxSucceeded: the work ended with exit code 0.
	SandboxSucceeded SandboxPhase = "Succeeded"
	// SandboxFailed: the work failed in every attempt, or its time was over.
	SandboxFailed SandboxPhase = "Failed"
	// SandboxCancelled: somebody cancelled or deleted the run before it ended.
	SandboxCancelled SandboxPhase = "Cancelled"
)

// Terminal reports whether nothing follows a phase.
func (p SandboxPhase) Terminal() bool {
	return p == SandboxSucceeded || p == SandboxFailed || p == SandboxCancelled
}

// Conditions of a SandboxRun, besides [ConditionEgressHeld].
const (
	// ConditionTemplateResolved says whether the template exists and allows the run.
	ConditionTemplateResolved = "TemplateResolved"
	// ConditionJobCreated says whether the run has its Job.
	ConditionJobCreated = "JobCreated"
	// ConditionPodReady says whether the Pod of the run is ready, and if not, why.
	ConditionPodReady = "PodReady"
	// ConditionStarted says whether the work has begun. A run that does not begin in time, from when it has its Workspace or
	// its Job is to be made, fails.
	ConditionStarted = "Started"
	// ConditionCompleted says whether the run is in a terminal phase, and why.
	ConditionCompleted = "Completed"
)

// Reasons of these conditions.
const (
	// SandboxResolved: the template is there.
	SandboxResolved = "Resolved"
	// SandboxRunTemplateMissing: the template, or its base, does not exist.
	SandboxRunTemplateMissing = "TemplateMissing"
	// SandboxRunTemplateForbids: the run asks for more than the template allows, or the template cannot run.
	SandboxRunTemplateForbids = "TemplateForbids"
	// SandboxCreated: the Job is there.
	SandboxCreated = "Created"
	// SandboxNameTaken: an object of somebody else has the name.
	SandboxNameTaken = "NameTaken"
	// SandboxRefused: the API server refuses what the run is made of: its Job, or the Pod of its Job.
	SandboxRefused = "Refused"
	// SandboxWaiting: the Pod is not ready yet.
	SandboxWaiting = "Waiting"
	// SandboxReady: the Pod is ready.
	SandboxReady = "Ready"
	// SandboxEnded: the Pod has ended.
	SandboxEnded = "Ended"
	// SandboxStarting: the work has not begun yet. The other conditions say what it waits for.
	SandboxStarting = "Starting"
	// SandboxStarted: the work has begun.
	SandboxStarted = "Started"
	// SandboxStartTimeout: the work did not begin in time, and the run has failed.
	SandboxStartTimeout = "StartTimeout"
	// SandboxPodLeft: the Job is gone, and a Pod that somebody kept of it has not ended.
	SandboxPodLeft = "PodLeft"
	// SandboxNotCompleted: the run is not in a terminal phase.
	SandboxNotCompleted = "NotCompleted"
	// SandboxUninstalled: the uninstall of the sandbox has ended the run, or the seed of the Workspace.
	SandboxUninstalled = "Uninstalled"
)

// LabelSandboxRun has the name of the run on all that belongs to it. Admission keeps it from the Pods of others.
const LabelSandboxRun = "admitkit.dev/run"

// FinalizerSandboxRun is on a run until its Pods are gone. Its network policy, which the run owns, stays as long.
const FinalizerSandboxRun = "admitkit.dev/sandboxrun"

// SandboxQuantity is an amount such as 2, 500m or 4Gi.
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Pattern=`^[0-9]{1,12}(\.[0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$`
type SandboxQuantity intstr.IntOrString

// String returns the amount as resource.ParseQuantity takes it.
func (q *SandboxQuantity) String() string { return (*intstr.IntOrString)(q).String() }

// UnmarshalJSON implements json.Unmarshaler.
func (q *SandboxQuantity) UnmarshalJSON(raw []byte) error {
	return (*intstr.IntOrString)(q).UnmarshalJSON(raw)
}

// MarshalJSON implements json.Marshaler.
func (q SandboxQuantity) MarshalJSON() ([]byte, error) {
	return intstr.IntOrString(q).MarshalJSON()
}

// SandboxResources are what the container requests, and may use at most.
type SandboxResources struct {
	// +optional
	CPU *SandboxQuantity `json:"cpu,omitempty"`
	// +optional
	Memory *SandboxQuantity `json:"memory,omitempty"`
	// +optional
	EphemeralStorage *SandboxQuantity `json:"ephemeralStorage,omitempty"`
}

// SandboxEnv is a variable of the container's environment. It has no valueFrom: a Secret that the work needs is
// leased to it, and not put into its environment.
type SandboxEnv struct {
	// Name cannot be one that the sandbox itself sets: those that begin with ADMITKIT_, and
	// those about proxies and certificate authorities.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_.-]*$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value"`
}

// SandboxBase refers to the ClusterSandboxRunTemplate from which a SandboxRunTemplate takes what it must not change.
type SandboxBase struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SandboxWorkspace is the folder in which the work writes. It is empty at the beginning, and gone with the Pod.
type SandboxWorkspace struct {
	// MountPath is where it is, and the working directory and HOME of the container.
	// +optional
	// +kubebuilder:default=/workspace
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$') && !['/tmp', '/dev', '/proc', '/sys', '/admitkit', '/var/run/secrets'].exists(p, self == p || self.startsWith(p + '/') || p.startsWith(self + '/'))",message="must be an absolute path, such as /workspace, apart from /tmp, /dev, /proc, /sys, /admitkit and /var/run/secrets"
	MountPath string `json:"mountPath,omitempty"`
	// Size is how much it holds at most. A Pod that writes more is evicted, and the attempt has failed.
	// +optional
	Size *SandboxQuantity `json:"size,omitempty"`
}

// SandboxRunTemplateSpec says what runs, and what it may do.
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.baseTemplateRef)",message="image or baseTemplateRef must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.baseTemplateRef) || !(has(self.image) || has(self.command) || has(self.args) || has(self.workspace) || has(self.egress) || has(self.pod))",message="baseTemplateRef locks image, command, args, workspace, egress and pod: leave them out"
type SandboxRunTemplateSpec struct {
	// BaseTemplateRef takes image, command, args, workspace, egress and pod from a
	// ClusterSandboxRunTemplate, which alone then says what they are. env is added to the
	// base's, and cannot replace any of it; the other fields can only be less than the base's.
	// +optional
	BaseTemplateRef *SandboxBase `json:"baseTemplateRef,omitempty"`
	// Image is the container's. It is pulled always, unless it names a digest.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// Command and Args are the container's. Variables in them, as $(NAME), are the
	// container's environment.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Command []string `json:"command,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Args []string `json:"args,omitempty"`
	// Env is added to the container's environment.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Env []SandboxEnv `json:"env,omitempty"`
	// Resources are what the container requests, and may use at most. A run can ask for
	// less. Default: cpu 1, memory 512Mi, ephemeralStorage 1Gi.
	// +optional
	Resources *SandboxResources `json:"resources,omitempty"`
	// Workspace is the folder in which the work writes.
	// +optional
	Workspace *SandboxWorkspace `json:"workspace,omitempty"`
	// Egress is what the Pod may reach, by address, and by name through its proxy. Default: nothing, not even names.
	// +optional
	Egress *SandboxEgress `json:"egress,omitempty"`
	// Pod is where the Pods run, and by which runtime. Whoever sets it in a namespace must be allowed to create Pods there.
	// +optional
	Pod *SandboxPod `json:"pod,omitempty"`
	// Interactive lets runs be Interactive, and says how long they live at most. The base's can only be made less.
	// Default: runs are Batch.
	// +optional
	Interactive *InteractiveLimits `json:"interactive,omitempty"`
	// Requires is what runs cannot be without. It is added to the base's.
	// +optional
	Requires *SandboxRequires `json:"requires,omitempty"`
	// TimeoutSeconds is how long a run may take, with all its attempts, from when its Job is there. A run can ask for
	// less. Default: 1800.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
	// TerminationGracePeriodSeconds is how long the work has to end when it is cancelled, or
	// its time is over. Default: 60.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=300
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// SandboxRunTemplate says what runs by it do, in its namespace.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=srt,categories={admitkit}
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Base",type=string,JSONPath=`.spec.baseTemplateRef.name`
// +kubebuilder:printcolumn:name="Timeout",type=integer,JSONPath=`.spec.timeoutSeconds`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SandboxRunTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SandboxRunTemplateSpec `json:"spec"`
}

// SandboxRunTemplateList is a list of SandboxRunTemplates.
// +kubebuilder:object:root=true
type SandboxRunTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxRunTemplate `json:"items"`
}

// ClusterSandboxRunTemplate is a SandboxRunTemplate for every namespace.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=csrt,categories={admitkit}
// +kubebuilder:validation:XValidation:rule="!has(self.spec.baseTemplateRef)",message="spec.baseTemplateRef: a ClusterSandboxRunTemplate has no base"
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Timeout",type=integer,JSONPath=`.spec.timeoutSeconds`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterSandboxRunTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SandboxRunTemplateSpec `json:"spec"`
}

// ClusterSandboxRunTemplateList is a list of ClusterSandboxRunTemplates.
// +kubebuilder:object:root=true
type ClusterSandboxRunTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterSandboxRunTemplate `json:"items"`
}

// SandboxRunTemplateRef refers to a template.
type SandboxRunTemplateRef struct {
	// Kind is SandboxRunTemplate or ClusterSandboxRunTemplate. Default: the SandboxRunTemplate of the
	// name if the namespace has it, and else the ClusterSandboxRunTemplate.
	// +optional
	// +kubebuilder:validation:Enum=SandboxRunTemplate;ClusterSandboxRunTemplate
	Kind string `json:"kind,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SandboxPromptSource is where the prompt is. Whoever makes the run must be allowed to get the object.
// +kubebuilder:validation:XValidation:rule="has(self.configMapKeyRef) != has(self.secretKeyRef)",message="exactly one of configMapKeyRef and secretKeyRef must be set"
type SandboxPromptSource struct {
	// +optional
	ConfigMapKeyRef *SandboxKey `json:"configMapKeyRef,omitempty"`
	// +optional
	SecretKeyRef *SandboxKey `json:"secretKeyRef,omitempty"`
}

// SandboxKey is a key of a ConfigMap or Secret in the namespace.
type SandboxKey struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// SandboxWorkspaceRef refers to a Workspace of the namespace.
type SandboxWorkspaceRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	Name string `json:"name"`
}

// MaxPromptBytes is the most bytes that a prompt by value may have.
const MaxPromptBytes = 256 << 10

// SandboxRunSpec is what a run asks for. It cannot be changed, but for cancelled.
// +kubebuilder:validation:XValidation:rule="has(self.prompt) != has(self.promptFrom)",message="exactly one of prompt and promptFrom must be set"
// +kubebuilder:validation:XValidation:rule="self.templateRef == oldSelf.templateRef",message="templateRef cannot be changed; make another run"
// +kubebuilder:validation:XValidation:rule="has(self.prompt) == has(oldSelf.prompt) && (!has(self.prompt) || self.prompt == oldSelf.prompt)",message="prompt cannot be changed; make another run"
// +kubebuilder:validation:XValidation:rule="has(self.promptFrom) == has(oldSelf.promptFrom) && (!has(self.promptFrom) || self.promptFrom == oldSelf.promptFrom)",message="promptFrom cannot be changed; make another run"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancelled) || !oldSelf.cancelled || (has(self.cancelled) && self.cancelled)",message="cancelled cannot be taken back; make another run"
// +kubebuilder:validation:XValidation:rule="!has(self.interactive) || has(self.mode) && self.mode == 'Interactive'",message="interactive needs mode Interactive"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Interactive' || !has(self.timeoutSeconds) && (!has(self.retries) || self.retries == 0)",message="an Interactive run has no timeoutSeconds, but interactive.maxLifetimeSeconds, and no retries"
// +kubebuilder:validation:XValidation:rule="has(self.author) == has(oldSelf.author) && (!has(self.author) || self.author == oldSelf.author)",message="author cannot be changed"
type SandboxRunSpec struct {
	// TemplateRef is the template.
	TemplateRef SandboxRunTemplateRef `json:"templateRef"`
	// Prompt is what the work is to do. The container has it as a file, whose path is in
	// ADMITKIT_PROMPT_FILE. It has at most 256 KiB.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Prompt string `json:"prompt,omitempty"`
	// PromptFrom is where the prompt is instead.
	// +optional
	PromptFrom *SandboxPromptSource `json:"promptFrom,omitempty"`
	// Mode says how the run is used. Interactive needs a template, and BrokerPolicies, that allow it.
	// +optional
	// +kubebuilder:default=Batch
	Mode SandboxMode `json:"mode,omitempty"`
	// Interactive replaces the limits of the template, as far as they are set. They can only be less.
	// +optional
	Interactive *InteractiveLimits `json:"interactive,omitempty"`
	// Model names a model for the work, which has it in ADMITKIT_MODEL.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model,omitempty"`
	// ExtraEnv is added to the container's environment. It cannot replace any of the template's.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	ExtraEnv []SandboxEnv `json:"extraEnv,omitempty"`
	// Resources replace the template's, as far as they are set. They can only be less.
	// +optional
	Resources *SandboxResources `json:"resources,omitempty"`
	// TimeoutSeconds replaces the template's. It can only be less.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
	// Retries is how often the work is tried again after it failed. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Retries int32 `json:"retries,omitempty"`
	// WorkspaceRef is a Workspace of the namespace to work in, instead of a folder that is gone
	// with the Pod. Runs have it one at a time, in the order in which they were made. Who
	// makes the run must be allowed to get it.
	// +optional
	WorkspaceRef *SandboxWorkspaceRef `json:"workspaceRef,omitempty"`
	// TTLSecondsAfterFinished is how long the run is kept after its end. It is then deleted,
	// with its Job and Pod. Default: until somebody deletes it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// Cancelled ends the run. It cannot be taken back.
	// +optional
	Cancelled bool `json:"cancelled,omitempty"`
	// Author is who made the run. The server sets it, and refuses another.
	// +optional
	Author *Author `json:"author,omitempty"`
}

// SandboxRunStatus is what became of a run.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.egress) || has(self.egress) && has(self.interception) == has(oldSelf.interception)",message="egress and interception are decided once, together"
type SandboxRunStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase SandboxPhase `json:"phase,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// JobName is the run's Job, and JobUID tells it from another of its name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	JobName string `json:"jobName,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=128
	JobUID string `json:"jobUID,omitempty"`
	// PromptSecret is the Secret with a prompt by value.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PromptSecret string `json:"promptSecret,omitempty"`
	// PodName is the Pod of the last attempt.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// StartTime is when the Job was made.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// CompletionTime is when the run was seen to be in a terminal phase.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Egress is what was decided about the Pod's egress. It is written before there is a
	// Job, and never changes: neither the template nor the operator's options change it later.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="egress is decided once"
	Egress *EgressDecision `json:"egress,omitempty"`
	// Interception says how connections come to the proxy of the run, which it has if a BrokerPolicy applies to its
	// template. It is written together with egress, and never changes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="interception is decided once"
	Interception InterceptionMode `json:"interception,omitempty"`
	// Credentials are those that the container has, by name. It has no values.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Credentials []SandboxCredential `json:"credentials,omitempty"`
	// Interactive is how an Interactive run is used.
	// +optional
	Interactive *InteractiveStatus `json:"interactive,omitempty"`
	// ExitCode is that of the last attempt.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Output is what the last attempt wrote to /dev/termination-log, or, if that is empty and
	// the attempt failed, the end of its log: at most 4 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Output string `json:"output,omitempty"`
	// RecentEvents are the last lines that the last attempt wrote, the newest last: at most 50, and at most 32 KiB. They
	// are read every few seconds while it works, and once more at its end. Credentials that the container was given are
	// replaced by ***.
	// +optional
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	RecentEvents []SandboxEvent `json:"recentEvents,omitempty"`
	// OutputClosed says that the run has ended, and recentEvents do not change any more.
	// +optional
	OutputClosed bool `json:"outputClosed,omitempty"`
}

// MaxRecentEvents is how many lines of its output the status of a run has at most.
const MaxRecentEvents = 50

// SandboxEvent is a line that the work wrote. If it is a JSON object whose type is text, it is an event of that type, and
// its message is the text that the object has as message, if there is one.
type SandboxEvent struct {
	// Time is when the node got the line.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Time metav1.MicroTime `json:"time"`
	// Type is that of an event.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type,omitempty"`
	// Message is the line, or its first KiB.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// SandboxRun is work that nobody trusts: a Job with one container, by a template. Its Pod
// reaches only what the template names.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=srun,categories={admitkit}
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52",message="metadata.name must have at most 52 characters, because the name of the Job is made of it; choose a shorter one"
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.templateRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Author",type=string,JSONPath=`.spec.author.username`
// +kubebuilder:printcolumn:name="Exit",type=integer,JSONPath=`.status.exitCode`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SandboxRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SandboxRunSpec `json:"spec"`
	// +optional
	Status SandboxRunStatus `json:"status,omitempty"`
}

// SandboxRunList is a list of SandboxRuns.
// +kubebuilder:object:root=true
type SandboxRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxRun `json:"items"`
}
