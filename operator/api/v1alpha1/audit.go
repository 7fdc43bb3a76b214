package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AuditWay is a way into a running container, named after its RBAC resource.
type AuditWay string

// The ways in.
const (
	WayExec         AuditWay = "pods/exec"
	WayAttach       AuditWay = "pods/attach"
	WayPortForward  AuditWay = "pods/portforward"
	WayPodProxy     AuditWay = "pods/proxy"
	WayServiceProxy AuditWay = "services/proxy"
	// WayNodeProxy is the kubelet's own API, which can exec too: see
	// AuditRecord.Path.
	WayNodeProxy AuditWay = "nodes/proxy"
	// WayDebug is the addition of ephemeral containers, as by kubectl debug.
	WayDebug AuditWay = "pods/ephemeralcontainers"
	// WayPod is the creation of a Pod that is a way in by itself, as kubectl debug
	// node makes it: see AuditRecord.Flags. With the verb update it is a new image in
	// a Pod that runs, as by kubectl set image.
	WayPod AuditWay = "pods"
	// WayCleanup is no way into a container: somebody deletes AuditEvents before the
	// end of their retention.
	WayCleanup AuditWay = "auditevents"
	// WayDecision is no way into a container: an extension records what it has decided or
	// done. Its verb is the extension's word for that: see AuditRecord.Object.
	WayDecision AuditWay = "decision"
)

// AuditDecision says whether an act was let through.
// +kubebuilder:validation:Enum=Allowed;Denied
type AuditDecision string

// The decisions.
const (
	AuditAllowed AuditDecision = "Allowed"
	AuditDenied  AuditDecision = "Denied"
)

// AuditFlag marks what an auditor wants to see first.
type AuditFlag string

// The flags.
const (
	// FlagHostNamespace: the Pod shares the node's process, network or IPC
	// namespace.
	FlagHostNamespace AuditFlag = "HostNamespace"
	// FlagHostPath: the Pod mounts a part of the node's file system.
	FlagHostPath AuditFlag = "HostPath"
	// FlagPrivileged: a container is privileged.
	FlagPrivileged AuditFlag = "Privileged"
	// FlagHostProcess: a container is a process of its Windows node (hostProcess).
	FlagHostProcess AuditFlag = "HostProcess"
	// FlagCapabilities: a container adds a Linux capability that leads to the node or
	// beyond the container: one that Pod Security's policy baseline forbids.
	FlagCapabilities AuditFlag = "Capabilities"
	// FlagInteractive: a container of the new Pod reads standard input, as with
	// kubectl run -i and kubectl debug -i.
	FlagInteractive AuditFlag = "Interactive"
	// FlagEphemeral: the session is in an ephemeral container.
	FlagEphemeral AuditFlag = "EphemeralContainer"
	// FlagKubelet: through this path on the node the kubelet runs commands or opens
	// sessions.
	FlagKubelet AuditFlag = "KubeletSession"
	// FlagBreakGlass: the user made use of an exemption from enforcement.
	FlagBreakGlass AuditFlag = "BreakGlass"
	// FlagWouldDeny: enforcement would have denied the act, were its mode Enforce. Rule and
	// Reason say why.
	FlagWouldDeny AuditFlag = "WouldDeny"
	// FlagTruncated: the command, or another part of the act, is longer than a record
	// holds. What is missing has its size and its SHA-256 in its place.
	FlagTruncated AuditFlag = "Truncated"
	// FlagRedacted: a value that looked like a secret was replaced.
	FlagRedacted AuditFlag = "Redacted"
)

// AuditUser is who acted, as the API server authenticated them.
type AuditUser struct {
	Username string `json:"username"`
	// +optional
	UID string `json:"uid,omitempty"`
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
	// Extra is what the authenticator adds, such as the id of the credential.
	// +optional
	Extra map[string][]string `json:"extra,omitempty"`
}

// AuditContainer is a container that an act adds, or whose image it changes.
type AuditContainer struct {
	Name string `json:"name"`
	// +optional
	Image string `json:"image,omitempty"`
	// Target is the container whose processes an ephemeral one sees.
	// +optional
	Target string `json:"target,omitempty"`
	// Command is its command and arguments, as in the record.
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty"`
	// +optional
	CommandBytes int64 `json:"commandBytes,omitempty"`
	// +optional
	CommandSHA256 string `json:"commandSHA256,omitempty"`
	// +optional
	TTY bool `json:"tty,omitempty"`
	// +optional
	Stdin bool `json:"stdin,omitempty"`
	// +optional
	Privileged bool `json:"privileged,omitempty"`
}

// AuditObject is what an extension has decided about.
type AuditObject struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// AuditAccessRequest is the access request that covers an act.
type AuditAccessRequest struct {
	// Kind is PodAccessRequest, ExecAccessRequest or RoleAccessRequest; its namespace is the
	// record's.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// AuditRecord is one act: who, where, what, and what was decided.
type AuditRecord struct {
	// Time is when the act was requested. Of two acts in one Pod through one server,
	// the later has the later time.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Time metav1.MicroTime `json:"time"`
	// ID is the UID of the admission request, or Session if there is one, and the record's
	// name.
	ID string `json:"id"`
	// Cluster is the name of the cluster, if the operator was told one.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster,omitempty"`
	// Amends is the ID of a record that was written before the act was refused
	// after all; this record, whose ID is another, says why.
	// +optional
	Amends string `json:"amends,omitempty"`
	// Way is the way in.
	Way AuditWay `json:"way"`
	// Verb is connect, update or create, or what an extension did, such as granted.
	Verb string `json:"verb"`
	// DryRun says that the request was a dry run, with no effect.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// User is who acted.
	User AuditUser `json:"user"`

	// Namespace is the namespace of the Pod or Service.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Pod is the Pod's name. It is empty on services/proxy and nodes/proxy, and for a
	// Pod that is created with generateName.
	// +optional
	Pod string `json:"pod,omitempty"`
	// PodUID tells apart Pods that had the same name at different times. It is
	// empty when the Pod could not be read.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// Service is the Service's name, on services/proxy.
	// +optional
	Service string `json:"service,omitempty"`
	// Node is where the Pod runs, or the node of nodes/proxy.
	// +optional
	Node string `json:"node,omitempty"`
	// Container is the container of the session: the one that the client named, or
	// else the API server's default.
	// +optional
	Container string `json:"container,omitempty"`
	// Image is the container's image.
	// +optional
	Image string `json:"image,omitempty"`

	// Command is the command and its arguments. Values that look like secrets are
	// redacted. Of a command of more than 32 KiB it has the beginning and the end.
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty"`
	// CommandBytes and CommandSHA256 are the size and the SHA-256 of the whole command,
	// each argument followed by a NUL, if Command has only a part of it.
	// +optional
	CommandBytes int64 `json:"commandBytes,omitempty"`
	// +optional
	CommandSHA256 string `json:"commandSHA256,omitempty"`
	// Session is the ID of the recorded session in which the command runs.
	// +optional
	Session string `json:"session,omitempty"`
	// +optional
	TTY bool `json:"tty,omitempty"`
	// +optional
	Stdin bool `json:"stdin,omitempty"`
	// Ports are those of a port-forward or proxy, as far as the request names
	// them: kubectl port-forward names its ports inside the session only.
	// +optional
	// +listType=atomic
	Ports []string `json:"ports,omitempty"`
	// Path is the path behind a proxy, or the AuditEvent that is deleted.
	// +optional
	Path string `json:"path,omitempty"`
	// Containers are those that the act adds or gives another image: ephemeral
	// containers, or those of a Pod.
	// +optional
	// +listType=atomic
	Containers []AuditContainer `json:"containers,omitempty"`

	// Object is what the decision of an extension is about. Its namespace is Namespace.
	// +optional
	Object *AuditObject `json:"object,omitempty"`

	// Decision says whether the act was let through. Another admission plugin may
	// still have refused it.
	Decision AuditDecision `json:"decision"`
	// Rule is the rule that decided, if one did.
	// +optional
	Rule string `json:"rule,omitempty"`
	// Reason is the message to the user.
	// +optional
	Reason string `json:"reason,omitempty"`
	// AccessRequest is the live access request that covers the act, if there is
	// one.
	// +optional
	AccessRequest *AuditAccessRequest `json:"accessRequest,omitempty"`
	// Flags mark what an auditor wants to see first.
	// +optional
	// +listType=set
	Flags []AuditFlag `json:"flags,omitempty"`
}

// AuditEventSpec is what an AuditEvent records. It cannot be changed.
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an audit record cannot be changed"
type AuditEventSpec struct {
	AuditRecord `json:",inline"`
	// Folded says that this object stands for a flood: for acts of the user beyond what
	// can have AuditEvents of their own. The status counts them. The record is that of
	// the first of them.
	// +optional
	Folded bool `json:"folded,omitempty"`
}

// AuditFold is a kind of act within a flood.
type AuditFold struct {
	Way      AuditWay      `json:"way"`
	Decision AuditDecision `json:"decision"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +optional
	Pod string `json:"pod,omitempty"`
	// +optional
	Service string `json:"service,omitempty"`
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	Container string `json:"container,omitempty"`
	// Command is the command, if there is room for it.
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty"`
	// CommandSHA256 is the SHA-256 of a command for which there is no room, each
	// argument followed by a NUL, as in the record. Where the act brings containers along, it is
	// that of the name and the image of each, and of its command, or the sum of that if it is cut.
	// +optional
	CommandSHA256 string `json:"commandSHA256,omitempty"`
	// Containers are those that the act brings along, as in the record, if there is room for them.
	// +optional
	// +listType=atomic
	Containers []AuditContainer `json:"containers,omitempty"`
	// Path is the path behind a proxy.
	// +optional
	Path string `json:"path,omitempty"`
	// Count is how many there were.
	Count int64 `json:"count"`
}

// AuditEventStatus counts what a folded AuditEvent stands for, and tells of the recording of
// a session. It only grows.
// +structType=atomic
type AuditEventStatus struct {
	// Count is the number of acts, the one in the spec included.
	// +optional
	Count int64 `json:"count,omitempty"`
	// FirstTime and LastTime are the times of the first and the last of them.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	FirstTime *metav1.MicroTime `json:"firstTime,omitempty"`
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	LastTime *metav1.MicroTime `json:"lastTime,omitempty"`
	// Acts are the different acts, as many as fit.
	// +optional
	// +listType=atomic
	Acts []AuditFold `json:"acts,omitempty"`
	// Unlisted is how many acts are counted above but did not fit into Acts.
	// +optional
	Unlisted int64 `json:"unlisted,omitempty"`
	// UnlistedSHA256 are the SHA-256 sums of the different commands of these acts, each
	// argument followed by a NUL, as many as fit. The path behind a proxy counts as a
	// command with one argument.
	// +optional
	// +listType=atomic
	UnlistedSHA256 []string `json:"unlistedSHA256,omitempty"`
	// RestSHA256 has the commands beyond these sums, one after the other: it is the
	// SHA-256 of the RestSHA256 before the command and of the command's sum, both as
	// hexadecimal text.
	// +optional
	RestSHA256 string `json:"restSHA256,omitempty"`

	// Session is the recording of the session, once that has ended, or says that it never
	// began. It is written once.
	// +optional
	Session *AuditSession `json:"session,omitempty"`
}

// ReasonNeverBegan is what the Reason of an [AuditSession] begins with if the exec was
// allowed, and no recorder came. It has no Location then.
const ReasonNeverBegan = "NeverBegan"

// AuditSession is a recording that is complete, or says that there is none.
type AuditSession struct {
	// Location is where the recording is.
	// +kubebuilder:validation:MaxLength=1024
	Location string `json:"location"`
	// EndTime is when the session ended, and Duration how long it took.
	EndTime  metav1.MicroTime `json:"endTime"`
	Duration metav1.Duration  `json:"duration"`
	// Frames and Bytes are what was recorded.
	Frames int64 `json:"frames"`
	Bytes  int64 `json:"bytes"`
	// SHA256 is the end of the chain of sums over all frames. A recording with another one
	// is not what was recorded.
	SHA256 string `json:"sha256"`
	// ExitCode is that of the command, and 128 and the number of the signal after a signal.
	ExitCode int32 `json:"exitCode"`
	// Reason says why the session ended before its command did, or that it never began
	// (NeverBegan).
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// KilledProcesses is how many processes the session had left and were killed, and
	// LeftProcesses how many could not be.
	// +optional
	KilledProcesses int32 `json:"killedProcesses,omitempty"`
	// +optional
	LeftProcesses int32 `json:"leftProcesses,omitempty"`
	// Contested says that two have presented the ticket of the session: the recording may not
	// be what a terminal showed, and is not valid.
	// +optional
	Contested bool `json:"contested,omitempty"`
}

// AuditEvent records one way into a running container that somebody took, or
// wanted to take. It is written once, by admitkit, and deleted at the end of its
// retention. Its name is the record's ID. It is cluster-scoped, so that it outlives
// the Pod's namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=aev,categories={admitkit}
// +kubebuilder:printcolumn:name="Time",type=string,JSONPath=`.spec.time`
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.user.username`
// +kubebuilder:printcolumn:name="Way",type=string,JSONPath=`.spec.way`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod`
// +kubebuilder:printcolumn:name="Command",type=string,JSONPath=`.spec.command`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.spec.decision`
// +kubebuilder:printcolumn:name="Count",type=integer,JSONPath=`.status.count`,priority=1
type AuditEvent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AuditEventSpec `json:"spec"`
	// +optional
	Status AuditEventStatus `json:"status,omitempty"`
}

// AuditEventList is a list of AuditEvents.
// +kubebuilder:object:root=true
type AuditEventList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AuditEvent `json:"items"`
}
