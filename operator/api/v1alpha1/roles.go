package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionRoleAllowed says whether the operator lets admitkit grant the role. Only
// RoleAccessTemplates have it.
const ConditionRoleAllowed = "RoleAllowed"

// AccessRoleRef names the role that requests get.
type AccessRoleRef struct {
	// Kind is Role, for one of the template's namespace, or ClusterRole.
	// +kubebuilder:validation:Enum=Role;ClusterRole
	Kind string `json:"kind"`
	// Name is the role's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// String returns kind and name, as kubectl writes them.
func (r AccessRoleRef) String() string { return r.Kind + "/" + r.Name }

// RoleRef returns what a RoleBinding refers to.
func (r AccessRoleRef) RoleRef() rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: r.Kind, Name: r.Name}
}

// RoleAccessTemplateSpec says which role requests get.
// +kubebuilder:validation:XValidation:rule="!has(self.accessConfig.accessCommand) && (!has(self.accessConfig.singleUse) || !self.accessConfig.singleUse) && (!has(self.accessConfig.onExpiry) || self.accessConfig.onExpiry == 'Keep') && !has(self.accessConfig.session) && (!has(self.accessConfig.verbs) || (size(self.accessConfig.verbs) == 2 && 'exec' in self.accessConfig.verbs && 'log' in self.accessConfig.verbs))",message="accessConfig.verbs, accessCommand, singleUse, onExpiry and session are about Pods, and a role has none: leave them out"
type RoleAccessTemplateSpec struct {
	// AccessConfig says who gets access, and for how long. Its verbs, accessCommand,
	// singleUse, onExpiry and session are about Pods, and cannot be set here.
	AccessConfig AccessConfig `json:"accessConfig"`

	// RoleRef is the role, which the operator must name, too. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="roleRef cannot be changed; make another template"
	RoleRef AccessRoleRef `json:"roleRef"`

	// Author is who made the template, or changed its spec last, and so answers for it: they
	// need the right to bind the role, when they write it and when it is granted. The
	// server sets it, and replaces what a client writes here.
	// +optional
	Author *Author `json:"author,omitempty"`
}

// RoleAccessTemplate lets engineers have a role in its namespace for a while.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rat,categories={access,admitkit}
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.roleRef.kind`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.roleRef.name`
// +kubebuilder:printcolumn:name="Max",type=string,JSONPath=`.spec.accessConfig.maxDuration`
// +kubebuilder:printcolumn:name="Author",type=string,JSONPath=`.spec.author.username`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RoleAccessTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RoleAccessTemplateSpec `json:"spec"`
	// +optional
	Status TemplateStatus `json:"status,omitempty"`
}

// RoleAccessTemplateList is a list of RoleAccessTemplates.
// +kubebuilder:object:root=true
type RoleAccessTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RoleAccessTemplate `json:"items"`
}

// GrantedRole is the role that a request got.
type GrantedRole struct {
	// Kind is Role or ClusterRole.
	// +kubebuilder:validation:MaxLength=64
	Kind string `json:"kind"`
	// Name is the role's.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID tells it from a later one of its name.
	// +kubebuilder:validation:MaxLength=128
	UID string `json:"uid"`
}

// String returns kind and name, as kubectl writes them.
func (r *GrantedRole) String() string { return r.Kind + "/" + r.Name }

// RoleAccessRequestSpec is a request for a role.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.requester) || (has(self.requester) && self.requester == oldSelf.requester)",message="requester cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(self.singleUse) || !self.singleUse",message="singleUse: a role cannot be limited to one session; leave it out"
// +kubebuilder:validation:XValidation:rule="has(self.reason) == has(oldSelf.reason) && (!has(self.reason) || self.reason == oldSelf.reason)",message="reason cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.revoked) || (has(self.revoked) && self.revoked == oldSelf.revoked)",message="revoked cannot be changed: the request has been revoked"
// +kubebuilder:validation:XValidation:rule=`(has(self.onBehalfOf) ? self.onBehalfOf : "") == (has(oldSelf.onBehalfOf) ? oldSelf.onBehalfOf : "")`,message="onBehalfOf cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approval) || (has(self.approval) && self.approval == oldSelf.approval)",message="approval cannot be changed; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.approval) || has(oldSelf.approval.skippedFor) || !has(oldSelf.duration) || (has(self.duration) && duration(self.duration) <= duration(oldSelf.duration))",message="duration cannot be extended, because others approve this one; make another request"
type RoleAccessRequestSpec struct {
	RequestSpec `json:",inline"`
}

// RoleAccessRequest asks for a role in its namespace, for a while.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rar,categories={access,admitkit}
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52",message="metadata.name must have at most 52 characters, because the name of the RoleBinding is made of it; choose a shorter one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.usedBy) || (has(self.status) && has(self.status.usedBy) && self.status.usedBy == oldSelf.status.usedBy)",message="status.usedBy cannot be changed: the request has been used"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.revokedAt) || (has(self.status) && has(self.status.revokedAt) && self.status.revokedAt == oldSelf.status.revokedAt)",message="status.revokedAt cannot be changed: the request has been revoked"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.approvedAt) || (has(self.status) && has(self.status.approvedAt) && self.status.approvedAt == oldSelf.status.approvedAt && self.status.verdicts == oldSelf.status.verdicts)",message="status.approvedAt and status.verdicts cannot be changed: the request has been approved"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.check) || (has(self.status) && has(self.status.check) && self.status.check == oldSelf.status.check)",message="status.check cannot be changed: the request has been checked"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.check) || !has(oldSelf.spec.duration) || (has(self.spec.duration) && duration(self.spec.duration) <= duration(oldSelf.spec.duration))",message="duration cannot be extended, because the check allowed this one; make another request"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.grantedRole) || (has(self.status) && has(self.status.grantedRole) && self.status.grantedRole == oldSelf.status.grantedRole)",message="status.grantedRole cannot be changed: the role has been granted; make another request"
// +kubebuilder:printcolumn:name="Template",type=string,JSONPath=`.spec.templateName`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.status.grantedRole.name`
// +kubebuilder:printcolumn:name="Requester",type=string,JSONPath=`.spec.requester.username`
// +kubebuilder:printcolumn:name="For",type=string,JSONPath=`.spec.onBehalfOf`,priority=1
// +kubebuilder:printcolumn:name="Approved",type=string,JSONPath=`.status.conditions[?(@.type=="Approved")].reason`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.expiresAt`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type RoleAccessRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RoleAccessRequestSpec `json:"spec"`
	// +optional
	Status RequestStatus `json:"status,omitempty"`
}

// RoleAccessRequestList is a list of RoleAccessRequests.
// +kubebuilder:object:root=true
type RoleAccessRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RoleAccessRequest `json:"items"`
}

var (
	_ Template = (*RoleAccessTemplate)(nil)
	_ Request  = (*RoleAccessRequest)(nil)
)

// GetAccessConfig implements [Template].
func (t *RoleAccessTemplate) GetAccessConfig() *AccessConfig { return &t.Spec.AccessConfig }

// GetTargetRef implements [Template]. The target is the role.
func (t *RoleAccessTemplate) GetTargetRef() *ControllerTargetRef {
	return &ControllerTargetRef{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: t.Spec.RoleRef.Kind, Name: t.Spec.RoleRef.Name}
}

// GetTemplateStatus implements [Template].
func (t *RoleAccessTemplate) GetTemplateStatus() *TemplateStatus { return &t.Status }

// GetRequestSpec implements [Request].
func (r *RoleAccessRequest) GetRequestSpec() *RequestSpec { return &r.Spec.RequestSpec }

// GetRequestStatus implements [Request].
func (r *RoleAccessRequest) GetRequestStatus() *RequestStatus { return &r.Status }

// GetTargetPod implements [Request]. There is none.
func (r *RoleAccessRequest) GetTargetPod() string { return "" }
