package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Conditions of a request.
const (
	// ConditionTargetTemplateExists says whether the template exists. A request waits for
	// it, but no longer than [TemplateWait].
	ConditionTargetTemplateExists = "TargetTemplateExists"
	// ConditionAccessDurationsValid says whether the duration can be parsed and,
	// when access was granted, did not exceed the template's maximum.
	ConditionAccessDurationsValid = "AccessDurationsValid"
	// ConditionAccessStillValid says whether the end is still to come.
	ConditionAccessStillValid = "AccessStillValid"
	// ConditionAccessResourcesCreated says whether the Role, the RoleBinding and
	// the access Pod exist.
	ConditionAccessResourcesCreated = "AccessResourcesCreated"
	// ConditionAccessResourcesReady says whether the Pod runs and is ready.
	ConditionAccessResourcesReady = "AccessResourcesReady"
	// ConditionAccessMessage says whether the access command could be made.
	ConditionAccessMessage = "AccessMessage"
	// ConditionApproved says whether those who must approve the request did. Only
	// requests by templates with approval have it.
	ConditionApproved = "Approved"
	// ConditionChecked says whether the check that the template names has allowed the
	// request. Only requests by templates with a check have it.
	ConditionChecked = "Checked"
)

// Reasons of conditions of a request that do not hold.
const (
	// ReasonTemplateMissing: the template does not exist.
	ReasonTemplateMissing = "TemplateMissing"
	// ReasonTemplateInvalid: the template is not valid.
	ReasonTemplateInvalid = "TemplateInvalid"
	// ReasonNotAllowed: the template allows neither the requester nor one of
	// their groups.
	ReasonNotAllowed = "NotAllowed"
	// ReasonDurationInvalid: spec.duration is not a duration, or not positive.
	ReasonDurationInvalid = "DurationInvalid"
	// ReasonDurationTooLong: spec.duration exceeds the template's maximum.
	ReasonDurationTooLong = "DurationTooLong"
	// ReasonMissing: the template requires spec.reason.
	ReasonMissing = "ReasonMissing"
	// ReasonSingleUse: the template requires spec.singleUse, or nothing enforces it
	// here.
	ReasonSingleUse = "SingleUse"
	// ReasonRequesterUnknown: the request did not pass admission.
	ReasonRequesterUnknown = "RequesterUnknown"
	// ReasonTargetMissing: the template's workload does not exist.
	ReasonTargetMissing = "TargetMissing"
	// ReasonUnknownPod: spec.targetPod does not exist, or is not one of the
	// workload's.
	ReasonUnknownPod = "UnknownPod"
	// ReasonNoPod: no Pod of the workload is ready.
	ReasonNoPod = "NoPod"
	// ReasonNameTaken: a Pod, Role or RoleBinding of the name that the request's would have
	// exists and belongs to somebody else.
	ReasonNameTaken = "NameTaken"
	// ReasonPodRefused: the API server refuses the access Pod: by Pod Security, a
	// quota or a webhook. The extension tries again.
	ReasonPodRefused = "PodRefused"
	// ReasonNotRecorded: sessions in the Pod are not recorded, and so cannot be ended as
	// onExpiry EndSession or session of the template wants it.
	ReasonNotRecorded = "NotRecorded"
	// ReasonPodNotReady: the access Pod is not ready yet.
	ReasonPodNotReady = "PodNotReady"
	// ReasonPodEnded: the access Pod has ended.
	ReasonPodEnded = "PodEnded"
	// ReasonPodGone: the Pod no longer exists, and another is not chosen.
	ReasonPodGone = "PodGone"
	// ReasonRoleLost: the role no longer exists, and another of its name is not granted.
	ReasonRoleLost = "RoleLost"
	// ReasonRoleNotAllowed: the operator does not let admitkit grant the role, or the author of
	// the template may not bind it.
	ReasonRoleNotAllowed = "RoleNotAllowed"
	// ReasonUsed: the single session that the request covers has begun.
	ReasonUsed = "Used"
	// ReasonExpired: the time is over.
	ReasonExpired = "Expired"
	// ReasonTooMany: the requester has as many other requests open as the template
	// allows.
	ReasonTooMany = "TooMany"
	// ReasonRevoked: access was taken back.
	ReasonRevoked = "Revoked"
	// ReasonWaiting: the request waits for approvals, or for the answer of its check.
	ReasonWaiting = "Waiting"
	// ReasonDenied: somebody who may approve denied the request, or its check did.
	ReasonDenied = "Denied"
	// ReasonTimedOut: the approvals did not come in time, or the answer of the check.
	ReasonTimedOut = "TimedOut"
	// ReasonCheckFailed: the check that the template names gives no valid answer, or is not
	// one of the operator's. It is asked again.
	ReasonCheckFailed = "CheckFailed"
	// ReasonCheckReplaced: the template names another check than the one that allowed the
	// request.
	ReasonCheckReplaced = "CheckReplaced"
	// ReasonTemplateReplaced: another template has the name of the one by which the
	// request was made.
	ReasonTemplateReplaced = "TemplateReplaced"
)

// Requester is who made a request, as the API server authenticated them.
type Requester struct {
	// Username is the user's name.
	// +kubebuilder:validation:MaxLength=1024
	Username string `json:"username"`
	// UID tells apart users who had the same name at different times.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	UID string `json:"uid,omitempty"`
	// Groups are the groups that the user was in.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
}

// RequestSpec is what the kinds of request have in common.
type RequestSpec struct {
	// TemplateName is the template, in the request's namespace. It cannot be
	// changed. A request waits ten minutes for a template that does not exist yet.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="templateName cannot be changed; make another request"
	TemplateName string `json:"templateName"`

	// Duration is how long access lasts, from the creation of the request, or from the
	// approval that decides where the template needs approval: a Go
	// duration such as 90m or 1h30m. Default: the template's, which is written
	// here when the request is made, so that a later change of the template
	// changes nothing. If the template does not exist yet, it is written when the
	// template is made. It can be shortened, and extended up to the template's
	// maximum until access has ended. One that needs approval cannot be extended:
	// others agreed to this duration.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]*)?(ns|us|µs|μs|ms|s|m|h))+$')",message="must be a duration such as 90m or 48h; hours are the largest unit"
	Duration string `json:"duration,omitempty"`

	// Reason says what the access is for. It cannot be changed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// SingleUse makes the request cover only one session, which status.usedBy then
	// names. It cannot be taken back. It needs the enforcement of the audit
	// extension, which counts sessions in the namespaces that it covers.
	// +optional
	SingleUse bool `json:"singleUse,omitempty"`

	// OnBehalfOf is the name of the user who gets access, instead of the requester. It
	// must be one of the template's allowedUsers: the groups of a user who does not ask
	// are not known. The requester must be one of the template's askFor. Users whose
	// names begin with system: cannot be asked for, ServiceAccounts among them. It
	// cannot be changed. Default: the requester gets access.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	OnBehalfOf string `json:"onBehalfOf,omitempty"`

	// Requester is who made the request. The server sets it, and replaces what a
	// client writes here.
	// +optional
	Requester *Requester `json:"requester,omitempty"`

	// Approval is what the request's approval depends on, where its template needs
	// any. The server sets it, and replaces what a client writes here. It cannot be
	// changed.
	// +optional
	Approval *ApprovalTerms `json:"approval,omitempty"`

	// Revoked ends access at once, and cannot be taken back. The requester may set
	// it, the user who was asked for, and any user whom RBAC lets delete the request. Unlike a deletion it keeps
	// the request as a record.
	// +optional
	Revoked *Revocation `json:"revoked,omitempty"`
}

// Revocation says who ended access before its time, when, and why.
type Revocation struct {
	// Reason says why. Only the requester may leave it out.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// By is who revoked the request. The server sets it, and replaces what a client
	// writes here.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	By string `json:"by,omitempty"`
	// At is when. The server sets it, and replaces what a client writes here.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	At *metav1.Time `json:"at,omitempty"`
}

// RequestStatus is the status of a request.
type RequestStatus struct {
	// ObservedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready says that access is granted and the Pod is ready.
	// +optional
	Ready bool `json:"ready"`
	// PodName is the Pod that access is about.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// PodUID is the UID of that Pod. It is written before there is access, and from
	// then on neither it nor podName changes: a request gives access to one Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	PodUID string `json:"podUID,omitempty"`
	// GrantedRole is the role that access is about. It is written before there is access, and
	// from then on never changes. Only RoleAccessRequests have it.
	// +optional
	GrantedRole *GrantedRole `json:"grantedRole,omitempty"`
	// AccessMessage is the command by which the engineer uses the access.
	// +optional
	AccessMessage string `json:"accessMessage,omitempty"`
	// ExpiresAt is when access ends.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// UsedBy is the session that used up a request with singleUse. It is written
	// before the session begins, and never changes: of two sessions that begin at
	// the same time, in different replicas, one finds it written.
	// +optional
	UsedBy *Use `json:"usedBy,omitempty"`
	// RevokedAt is when the uninstall of admitkit took access back before its end.
	// It never changes: a request that was revoked gives no access, whatever the
	// time, even after admitkit is installed again. Users revoke by spec.revoked.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	RevokedAt *metav1.Time `json:"revokedAt,omitempty"`
	// ApprovedAt is when the approval that decided was given. It is written before
	// there is access, and from then on never changes: the end of access follows
	// from it, whatever becomes of the decisions.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ApprovedAt *metav1.Time `json:"approvedAt,omitempty"`
	// Verdicts are the decisions that counted so far. From the one that decided on
	// they never change.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Check is what the check that the template names answered. It is written before
	// there is access, and from then on never changes: a check is asked no more once its
	// answer is here.
	// +optional
	Check *CheckResult `json:"check,omitempty"`
	// Egress is what was decided about what the access Pod may reach. It is written before
	// there is a Pod, and from then on never changes. Only PodAccessRequests by templates
	// with egress have it.
	// +optional
	Egress *EgressDecision `json:"egress,omitempty"`
	// GrantedAt is when access was granted first.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	GrantedAt *metav1.Time `json:"grantedAt,omitempty"`
	// EndAnnounced is the end of access that was announced last, shortly before it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	EndAnnounced *metav1.Time `json:"endAnnounced,omitempty"`
	// Conditions say how far the request has come.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Use is a session that used up a request.
type Use struct {
	// UID is that of the admission request of the session, which is also in its
	// AuditEvent.
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid"`
	// Username is whose session it is.
	// +kubebuilder:validation:MaxLength=1024
	Username string `json:"username"`
	// Verb is the subresource: exec, attach, portforward...
	// +kubebuilder:validation:MaxLength=64
	Verb string `json:"verb"`
	// Time is when it began.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Time metav1.Time `json:"time"`
}

// PodAccessRequestSpec is a request for a Pod of one's own.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.requester) || (has(self.requester) && self.requester == oldSelf.requester)",message="requester cannot be changed"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.singleUse) && oldSelf.singleUse) || (has(self.singleUse) && self.singleUse)",message="singleUse cannot be taken back; make another request"
// +kubebuilder:validation:XValidation:rule="has(self.reason) == has(oldSelf.reason) && (!has(self.reason) || self.reason == oldSelf.reason)",message="reason cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.revoked) || (has(self.revoked) && self.revoked == oldSelf.revoked)",message="revoked cannot be changed: the request has been revoked"
// +kubebuilder:validation:XValidation:rule=`(has(self.onBehalfOf) ? self.onBehalfOf : "") == (has(oldSelf.onBehalfOf) ? oldSelf.onBehalfOf : "")`,message="onBehalfOf cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approval) || (has(self.approval) && self.approval == oldSelf.approval)",message="approval cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approval) || has(oldSelf.approval.skippedFor) || !has(oldSelf.duration) || (has(self.duration) && duration(self.duration) <= duration(oldSelf.duration))",message="duration cannot be extended, because others approve this one; make another request"
type PodAccessRequestSpec struct {
	RequestSpec `json:",inline"`
}

// PodAccessRequest asks for a Pod of one's own, for a while.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=par,categories={access,admitkit}
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="metadata.name must have at most 52 characters, because the name of the access Pod is made of it; choose a shorter one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.egress) || (has(self.status) && has(self.status.egress) && self.status.egress == oldSelf.status.egress)",message="status.egress cannot be changed: it was decided what the Pod may reach; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.usedBy) || (has(self.status) && has(self.status.usedBy) && self.status.usedBy == oldSelf.status.usedBy)",message="status.usedBy cannot be changed: the request has been used"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.revokedAt) || (has(self.status) && has(self.status.revokedAt) && self.status.revokedAt == oldSelf.status.revokedAt)",message="status.revokedAt cannot be changed: the request has been revoked"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.approvedAt) || (has(self.status) && has(self.status.approvedAt) && self.status.approvedAt == oldSelf.status.approvedAt && self.status.verdicts == oldSelf.status.verdicts)",message="status.approvedAt and status.verdicts cannot be changed: the request has been approved"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.check) || (has(self.status) && has(self.status.check) && self.status.check == oldSelf.status.check)",message="status.check cannot be changed: the request has been checked"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.check) || !has(oldSelf.spec.duration) || (has(self.spec.duration) && duration(self.spec.duration) <= duration(oldSelf.spec.duration))",message="duration cannot be extended, because the check allowed this one; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.podUID) || (has(self.status) && has(self.status.podUID) && self.status.podUID == oldSelf.status.podUID && has(self.status.podName) == has(oldSelf.status.podName) && (!has(self.status.podName) || self.status.podName == oldSelf.status.podName))",message="status.podName and status.podUID cannot be changed: the Pod has been chosen; make another request"
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.templateName`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.podName`
// +kubebuilder:printcolumn:name="Requester",type=string,JSONPath=`.spec.requester.username`
// +kubebuilder:printcolumn:name="For",type=string,JSONPath=`.spec.onBehalfOf`,priority=1
// +kubebuilder:printcolumn:name="Approved",type=string,JSONPath=`.status.conditions[?(@.type=="Approved")].reason`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.expiresAt`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type PodAccessRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PodAccessRequestSpec `json:"spec"`
	// +optional
	Status RequestStatus `json:"status,omitempty"`
}

// PodAccessRequestList is a list of PodAccessRequests.
// +kubebuilder:object:root=true
type PodAccessRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodAccessRequest `json:"items"`
}

// ExecAccessRequestSpec is a request for access to a Pod that runs already.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.requester) || (has(self.requester) && self.requester == oldSelf.requester)",message="requester cannot be changed"
// +kubebuilder:validation:XValidation:rule=`(has(self.targetPod) ? self.targetPod : "") == (has(oldSelf.targetPod) ? oldSelf.targetPod : "")`,message="targetPod cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.singleUse) && oldSelf.singleUse) || (has(self.singleUse) && self.singleUse)",message="singleUse cannot be taken back; make another request"
// +kubebuilder:validation:XValidation:rule="has(self.reason) == has(oldSelf.reason) && (!has(self.reason) || self.reason == oldSelf.reason)",message="reason cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.revoked) || (has(self.revoked) && self.revoked == oldSelf.revoked)",message="revoked cannot be changed: the request has been revoked"
// +kubebuilder:validation:XValidation:rule=`(has(self.onBehalfOf) ? self.onBehalfOf : "") == (has(oldSelf.onBehalfOf) ? oldSelf.onBehalfOf : "")`,message="onBehalfOf cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approval) || (has(self.approval) && self.approval == oldSelf.approval)",message="approval cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approval) || has(oldSelf.approval.skippedFor) || !has(oldSelf.duration) || (has(self.duration) && duration(self.duration) <= duration(oldSelf.duration))",message="duration cannot be extended, because others approve this one; make another request"
type ExecAccessRequestSpec struct {
	RequestSpec `json:",inline"`

	// TargetPod is the Pod, which must be one of the target workload's. It
	// cannot be changed. Default, also of "": one of those that are ready.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TargetPod string `json:"targetPod,omitempty"`
}

// ExecAccessRequest asks for access to a Pod that runs already, for a while.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ear,categories={access,admitkit}
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="metadata.name must have at most 52 characters, because the names of Role and RoleBinding are made of it; choose a shorter one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.usedBy) || (has(self.status) && has(self.status.usedBy) && self.status.usedBy == oldSelf.status.usedBy)",message="status.usedBy cannot be changed: the request has been used"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.revokedAt) || (has(self.status) && has(self.status.revokedAt) && self.status.revokedAt == oldSelf.status.revokedAt)",message="status.revokedAt cannot be changed: the request has been revoked"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.approvedAt) || (has(self.status) && has(self.status.approvedAt) && self.status.approvedAt == oldSelf.status.approvedAt && self.status.verdicts == oldSelf.status.verdicts)",message="status.approvedAt and status.verdicts cannot be changed: the request has been approved"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.check) || (has(self.status) && has(self.status.check) && self.status.check == oldSelf.status.check)",message="status.check cannot be changed: the request has been checked"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.check) || !has(oldSelf.spec.duration) || (has(self.spec.duration) && duration(self.spec.duration) <= duration(oldSelf.spec.duration))",message="duration cannot be extended, because the check allowed this one; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.podUID) || (has(self.status) && has(self.status.podUID) && self.status.podUID == oldSelf.status.podUID && has(self.status.podName) == has(oldSelf.status.podName) && (!has(self.status.podName) || self.status.podName == oldSelf.status.podName))",message="status.podName and status.podUID cannot be changed: the Pod has been chosen; make another request"
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.templateName`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.podName`
// +kubebuilder:printcolumn:name="Requester",type=string,JSONPath=`.spec.requester.username`
// +kubebuilder:printcolumn:name="For",type=string,JSONPath=`.spec.onBehalfOf`,priority=1
// +kubebuilder:printcolumn:name="Approved",type=string,JSONPath=`.status.conditions[?(@.type=="Approved")].reason`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.expiresAt`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type ExecAccessRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ExecAccessRequestSpec `json:"spec"`
	// +optional
	Status RequestStatus `json:"status,omitempty"`
}

// ExecAccessRequestList is a list of ExecAccessRequests.
// +kubebuilder:object:root=true
type ExecAccessRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExecAccessRequest `json:"items"`
}

// Request is a request of any kind.
//
// +kubebuilder:object:generate=false
type Request interface {
	metav1.Object
	runtime.Object
	GetRequestSpec() *RequestSpec
	GetRequestStatus() *RequestStatus
	// GetTargetPod returns the Pod that the request names, or "" if it names none.
	GetTargetPod() string
}

var (
	_ Request = (*PodAccessRequest)(nil)
	_ Request = (*ExecAccessRequest)(nil)
)

// GetRequestSpec implements [Request].
func (r *PodAccessRequest) GetRequestSpec() *RequestSpec { return &r.Spec.RequestSpec }

// GetRequestStatus implements [Request].
func (r *PodAccessRequest) GetRequestStatus() *RequestStatus { return &r.Status }

// GetTargetPod implements [Request]. The Pod is yet to be made.
func (r *PodAccessRequest) GetTargetPod() string { return "" }

// GetRequestSpec implements [Request].
func (r *ExecAccessRequest) GetRequestSpec() *RequestSpec { return &r.Spec.RequestSpec }

// GetRequestStatus implements [Request].
func (r *ExecAccessRequest) GetRequestStatus() *RequestStatus { return &r.Status }

// GetTargetPod implements [Request].
func (r *ExecAccessRequest) GetTargetPod() string { return r.Spec.TargetPod }

// Grantee returns the name of the user whose access it is: the one who is asked for, or
// the requester. It is empty if the request did not pass admission.
func (s *RequestSpec) Grantee() string {
	switch {
	case s.OnBehalfOf != "":
		return s.OnBehalfOf
	case s.Requester != nil:
		return s.Requester.Username
	}
	return ""
}

// EndOf returns when the access of a request ends: at the end of spec.duration, or
// when it was revoked, but never before the request was made. One that waits for
// approval ends when it can no longer come. It follows from fields
// that only the server sets or that admission guards, and not from annotations or
// templates, which others may write. Of the status it believes what makes the
// end earlier and cannot be taken back, and when the request was approved, which
// admission lets only the manager write. [Over] says whether access has ended.
func EndOf(r Request) (time.Time, error) {
	end, err := TermOf(r)
	if err != nil {
		return end, err
	}
	for _, at := range revocations(r) {
		if at != nil && at.Time.Before(end) {
			end = at.Time
		}
	}
	if created := r.GetCreationTimestamp().Time; end.Before(created) {
		end = created
	}
	return end, nil
}

// Over reports whether the access of a request is over: its time has passed, it was
// revoked, or its duration cannot be parsed. A revocation counts whatever its time is,
// because the clock that gave it may be ahead of the one that gave now.
func Over(r Request, now time.Time) bool {
	end, err := EndOf(r)
	return err != nil || len(revocations(r)) > 0 || !now.Before(end)
}

// ByUse orders the requests that cover a session by which it uses: one for any number of
// sessions before one for a single session; of the former the one that ends last, so that
// the session may go on, and of the latter the one that ends first.
func ByUse(x, y Request) int {
	xEnd, _ := EndOf(x) // one without an end covers nothing
	yEnd, _ := EndOf(y)
	single := x.GetRequestSpec().SingleUse
	switch {
	case single != y.GetRequestSpec().SingleUse && single:
		return 1
	case single != y.GetRequestSpec().SingleUse:
		return -1
	case single:
		return xEnd.Compare(yEnd)
	}
	return yEnd.Compare(xEnd)
}

// revocations returns when a request was revoked, by a user and by an uninstall. The
// first has no time if no webhook saw it.
func revocations(r Request) (at []*metav1.Time) {
	if by := r.GetRequestSpec().Revoked; by != nil {
		at = append(at, by.At)
	}
	if uninstalled := r.GetRequestStatus().RevokedAt; uninstalled != nil {
		at = append(at, uninstalled)
	}
	return at
}

// WarnAt returns when to warn of the end of access: before it, but not sooner than in the
// last quarter of its time. It says whether there is anything to warn of: not if that would
// be less than a second before the end.
func WarnAt(r Request, before time.Duration) (at time.Time, warns bool) {
	begin, waits := BeginOf(r)
	end, err := EndOf(r)
	if before = min(before, end.Sub(begin)/4); err != nil || waits || before < time.Second {
		return time.Time{}, false
	}
	return end.Add(-before), true
}

// TemplateWait is how long after its creation a request waits for its template to be made.
const TemplateWait = 10 * time.Minute

// TermOf returns when the requested time is over. [EndOf] says whether access lasts
// that long. Without a duration the request waits for its template, which gives it one,
// and its time is over after [TemplateWait]. One that waits for approval waits until
// then, and no longer.
func TermOf(r Request) (time.Time, error) {
	spec := r.GetRequestSpec()
	begin, waits := BeginOf(r)
	switch {
	case spec.Duration == "":
		return r.GetCreationTimestamp().Add(TemplateWait), nil
	case waits:
		return begin, nil
	}
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil {
		return time.Time{}, fmt.Errorf("spec.duration: %w", err)
	}
	return begin.Add(r.GetRequestStatus().Check.limit(duration)), nil
}
