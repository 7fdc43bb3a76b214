package v1alpha1

// AccessVerb is something that an engineer may do with a Pod.
// +kubebuilder:validation:Enum=exec;attach;portforward;log;ephemeralcontainers
type AccessVerb string

// The verbs. Each allows the subresource of that name, and to get the Pod.
const (
	VerbExec                AccessVerb = "exec"
	VerbAttach              AccessVerb = "attach"
	VerbPortForward         AccessVerb = "portforward"
	VerbLog                 AccessVerb = "log"
	VerbEphemeralContainers AccessVerb = "ephemeralcontainers"
)

// Subjects says to whom access is granted.
// +kubebuilder:validation:Enum=Requester;Groups
type Subjects string

// Whom a granted request gives access to.
const (
	// SubjectsRequester is only the user who asked.
	SubjectsRequester Subjects = "Requester"
	// SubjectsGroups is every member of allowedGroups and every one of allowedUsers,
	// as in Oz: one asks, all get in.
	SubjectsGroups Subjects = "Groups"
)

// ExpiryAction says what happens to sessions that are open when access ends.
// +kubebuilder:validation:Enum=Keep;Evict;EndSession
type ExpiryAction string

// What happens to the target Pod of exec access at its end.
const (
	// ExpiryKeep leaves the Pod as it is. A session that is open stays open
	// until its client or the container ends it.
	ExpiryKeep ExpiryAction = "Keep"
	// ExpiryEvict evicts the Pod, which ends its sessions and whatever was left
	// running in it. PodDisruptionBudgets are respected.
	ExpiryEvict ExpiryAction = "Evict"
	// ExpiryEndSession ends the sessions that began by the grant, at that second, and leaves
	// the Pod as it is. Sessions must be recorded there, as operator/session does it, since
	// its recorder ends them: a Pod without one is not granted.
	ExpiryEndSession ExpiryAction = "EndSession"
)

// SessionLimits end the recorded sessions of a grant before access ends. The operator may have
// set limits for all sessions, too: the smaller ones count.
// +kubebuilder:validation:XValidation:rule="has(self.idleTimeout) || has(self.maxLength)",message="idleTimeout or maxLength must be set: leave session out for no limits"
type SessionLimits struct {
	// IdleTimeout is for how long the user of a session may do nothing before it ends: a
	// duration of whole seconds such as 15m. Default: as long as the operator allows.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+[hms])+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="must be a duration of whole seconds from 1s to 8760h, such as 15m or 1h30m"
	IdleTimeout string `json:"idleTimeout,omitempty"`

	// MaxLength is how long a session may take, whatever its user does: a duration such as
	// 2h. Default: as long as the operator allows, and at most as long as access.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+[hms])+$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="must be a duration of whole seconds from 1s to 8760h, such as 15m or 1h30m"
	MaxLength string `json:"maxLength,omitempty"`
}

// AccessConfig says who gets access, what they may do, and for how long.
// +kubebuilder:validation:XValidation:rule="!has(self.approval) || !has(self.approval.skipGroups) || size(self.approval.skipGroups) == 0 || !has(self.subjects) || self.subjects == \"Requester\"",message="approval.skipGroups needs subjects Requester: one who needs no approval would let all others in"
// +kubebuilder:validation:XValidation:rule="!has(self.approval) || !has(self.approval.required) || self.approval.required == 0 || !has(self.subjects) || self.subjects == \"Requester\"",message="approval.required needs subjects Requester: one who approves could be of a group that gets access, and approve their own"
// +kubebuilder:validation:XValidation:rule="!self.defaultDuration.matches('^([0-9]+([.][0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$') || !self.maxDuration.matches('^([0-9]+([.][0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$') || duration(self.defaultDuration) <= duration(self.maxDuration)",message="defaultDuration, which is 1h if you leave it out, must not exceed maxDuration"
// +kubebuilder:validation:XValidation:rule="size(self.allowedGroups) + size(self.allowedUsers) > 0",message="allowedGroups or allowedUsers must name somebody"
// +kubebuilder:validation:XValidation:rule="!has(self.askFor) || size(self.allowedUsers) > 0",message="askFor needs allowedUsers: only they can be asked for, since the server does not know the groups of a user who does not ask"
// +kubebuilder:validation:XValidation:rule="!has(self.askFor) || !has(self.subjects) || self.subjects == \"Requester\"",message="askFor needs subjects Requester: only the user who is asked for gets access"
// +kubebuilder:validation:XValidation:rule="!has(self.onExpiry) || self.onExpiry != 'EndSession' || !has(self.verbs) || self.verbs.all(v, v in ['exec', 'log'])",message="onExpiry EndSession needs verbs exec and log alone: attach, portforward and ephemeral containers would go on after the end"
// +kubebuilder:validation:XValidation:rule="!has(self.session) || !has(self.verbs) || self.verbs.all(v, v in ['exec', 'log'])",message="session needs verbs exec and log alone: attach, portforward and ephemeral containers have no such limits"
type AccessConfig struct {
	// AllowedGroups are the groups whose members may request access.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:XValidation:rule="self != ''",message="must not be empty: an empty name allows nobody; leave it out"
	// +listType=set
	AllowedGroups []string `json:"allowedGroups,omitempty"`

	// AllowedUsers are users who may request access without being in a group.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:XValidation:rule="self != ''",message="must not be empty: an empty name allows nobody; leave it out"
	// +listType=set
	AllowedUsers []string `json:"allowedUsers,omitempty"`

	// AskFor are those who may ask for others, such as a bot of a chat: the request's
	// onBehalfOf then names one of allowedUsers, who alone gets access. They need not
	// be allowed themselves, and get no access by asking for others. Default: nobody.
	// +optional
	AskFor *AskFor `json:"askFor,omitempty"`

	// DefaultDuration is how long access lasts when the request names no
	// duration: a Go duration such as 90m or 1h30m.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$')",message="must be a duration such as 90m or 48h; hours are the largest unit"
	DefaultDuration string `json:"defaultDuration,omitempty"`

	// MaxDuration is how long access may last at most, from the creation of the
	// request.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$')",message="must be a duration such as 90m or 48h; hours are the largest unit"
	MaxDuration string `json:"maxDuration,omitempty"`

	// AccessCommand is the command that the request's accessMessage tells the
	// engineer to run, for example
	// "kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- /bin/bash".
	// It has the form of Go's text/template, but understands only the Pod's
	// .Metadata.Name, .Namespace, .GenerateName and .UID, .Metadata.Labels.key and
	// .Metadata.Annotations.key, and index .Metadata.Labels "key"; anything else is
	// refused. The result has at most 4096 bytes.
	// Default: the same with /bin/sh. The plugin kubectl access shows any command.
	// With its flag --shell it runs only commands that use this Pod: kubectl attach,
	// debug, exec, get, logs and port-forward, without flags that say where to
	// connect and as whom.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	AccessCommand string `json:"accessCommand,omitempty"`

	// Verbs are what the engineer may do with the Pod. Default: exec and log.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +listType=set
	Verbs []AccessVerb `json:"verbs,omitempty"`

	// RequireReason refuses requests that give no reason.
	// +optional
	RequireReason bool `json:"requireReason,omitempty"`

	// SingleUse makes every request cover one session only, whether it asks for
	// that or not; see the request's singleUse.
	// +optional
	SingleUse bool `json:"singleUse,omitempty"`

	// MaxConcurrent is how many requests of one user by this template may be open at
	// the same time: granted, or waiting to be. A request on behalf of another counts
	// for both users. One that has ended, was revoked, or
	// was for a single session in a Pod of a workload and has been used, is not open.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`

	// Subjects says whether access is granted to the Requester or to all of the
	// allowed Groups and users.
	// +optional
	// +kubebuilder:default=Requester
	Subjects Subjects `json:"subjects,omitempty"`

	// OnExpiry says whether the Pod of exec access is kept or evicted when access
	// ends, or its sessions are ended, which must be recorded for that. Default: Keep. The
	// Pod of pod access is deleted in any case, and cannot have EndSession.
	// +optional
	OnExpiry ExpiryAction `json:"onExpiry,omitempty"`

	// Session limits the sessions that begin by a grant. They must be recorded for that, as
	// operator/session does it, since its recorder ends them: a Pod without one is not
	// granted. Default: the operator's limits.
	// +optional
	Session *SessionLimits `json:"session,omitempty"`

	// Approval says who must agree to a request before it is granted. Default: nobody.
	// +optional
	Approval *Approval `json:"approval,omitempty"`

	// Check names a check that the operator configured, such as a ticket or change-window
	// system. It is asked when a request is otherwise ready to be granted, after approvals,
	// and allows it, denies it or shortens it. Without its answer nothing is granted.
	// Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Check string `json:"check,omitempty"`
}

// AskFor says who may ask for others.
// +kubebuilder:validation:XValidation:rule="(has(self.users) ? size(self.users) : 0) + (has(self.groups) ? size(self.groups) : 0) > 0",message="users or groups must name somebody; leave askFor out for nobody"
type AskFor struct {
	// Users may ask for others.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=set
	Users []string `json:"users,omitempty"`
	// Groups are those whose members may.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +listType=set
	Groups []string `json:"groups,omitempty"`
}

// ControllerTargetRef names the workload whose Pods, or Pod template, access is
// about.
// +kubebuilder:validation:XValidation:rule="self.kind in {'Deployment': 'apps/v1', 'DaemonSet': 'apps/v1', 'StatefulSet': 'apps/v1', 'ReplicaSet': 'apps/v1', 'Job': 'batch/v1', 'CronJob': 'batch/v1', 'Pod': 'v1', 'Rollout': 'argoproj.io/v1alpha1'} && self.apiVersion == {'Deployment': 'apps/v1', 'DaemonSet': 'apps/v1', 'StatefulSet': 'apps/v1', 'ReplicaSet': 'apps/v1', 'Job': 'batch/v1', 'CronJob': 'batch/v1', 'Pod': 'v1', 'Rollout': 'argoproj.io/v1alpha1'}[self.kind]",message="apiVersion and kind must be apps/v1 Deployment, DaemonSet, StatefulSet or ReplicaSet, batch/v1 Job or CronJob, v1 Pod, or argoproj.io/v1alpha1 Rollout"
type ControllerTargetRef struct {
	// APIVersion is the group and version of the workload.
	// +kubebuilder:validation:MaxLength=64
	APIVersion string `json:"apiVersion"`
	// Kind is the kind of the workload.
	// +kubebuilder:validation:Enum=Deployment;DaemonSet;StatefulSet;ReplicaSet;Job;CronJob;Pod;Rollout
	Kind string `json:"kind"`
	// Name is the name of the workload, in the template's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// String returns kind and name, as kubectl writes them.
func (r ControllerTargetRef) String() string { return r.Kind + "/" + r.Name }

// NeedsRecording reports whether sessions must be recorded, because something is to end them.
func (c *AccessConfig) NeedsRecording() bool {
	return c.OnExpiry == ExpiryEndSession || c.Session != nil
}
