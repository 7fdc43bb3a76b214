package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ConditionEffective of a transient binding says whether its binding exists. Its reason
// is one of the following.
const ConditionEffective = "Effective"

// Reasons of ConditionEffective.
const (
	// BindingNotYet: its time has not come.
	BindingNotYet = "NotYet"
	// BindingActive: the binding exists.
	BindingActive = "Active"
	// BindingEnded: its time is over.
	BindingEnded = "Ended"
	// BindingNameTaken: somebody else's binding has the name.
	BindingNameTaken = "NameTaken"
	// BindingRoleMissing: the role does not exist yet.
	BindingRoleMissing = "RoleMissing"
	// BindingRoleLost: the role was deleted, and another of its name is not meant.
	BindingRoleLost = "RoleLost"
	// BindingNotAllowed: the author may not bind the role, or the operator does not let
	// it be bound.
	BindingNotAllowed = "NotAllowed"
)

// BoundRole is a reference to a role. [BoundRole.Ref] is the one of Kubernetes.
type BoundRole struct {
	// APIGroup is that of Kubernetes' RBAC.
	// +optional
	// +kubebuilder:default=rbac.authorization.k8s.io
	// +kubebuilder:validation:Enum=rbac.authorization.k8s.io
	APIGroup string `json:"apiGroup,omitempty"`
	// Kind is Role, of the namespace of the object, or ClusterRole.
	// +kubebuilder:validation:Enum=Role;ClusterRole
	Kind string `json:"kind"`
	// Name is the role's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Ref returns the reference that a binding has.
func (r *BoundRole) Ref() rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: r.Kind, Name: r.Name}
}

// BoundSubject is to whom a role is bound.
// +kubebuilder:validation:XValidation:rule=`self.kind == 'ServiceAccount' ? has(self.__namespace__) && self.__namespace__ != "" : !has(self.__namespace__) || self.__namespace__ == ""`,message="namespace: a ServiceAccount has one, a User or a Group has none"
// +kubebuilder:validation:XValidation:rule=`!has(self.apiGroup) || self.apiGroup == "" || self.kind != 'ServiceAccount'`,message="apiGroup: a ServiceAccount has none"
type BoundSubject struct {
	// Kind is User, Group or ServiceAccount.
	// +kubebuilder:validation:Enum=User;Group;ServiceAccount
	Kind string `json:"kind"`
	// APIGroup of a User or a Group can be left out.
	// +optional
	// +kubebuilder:validation:Enum="";rbac.authorization.k8s.io
	APIGroup string `json:"apiGroup,omitempty"`
	// Name is the subject's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// Namespace is that of a ServiceAccount.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// Subject returns the subject that a binding has.
func (s *BoundSubject) Subject() rbacv1.Subject {
	subject := rbacv1.Subject{Kind: s.Kind, APIGroup: rbacv1.GroupName, Name: s.Name, Namespace: s.Namespace}
	if s.Kind == rbacv1.ServiceAccountKind {
		subject.APIGroup = ""
	}
	return subject
}

// TransientBindingSpec is what both kinds of transient binding have in common. Whoever may
// write the object can narrow it: make it end sooner, or for fewer subjects. A later end and
// another subject are a new grant: whoever writes them becomes the author.
// +kubebuilder:validation:XValidation:rule="!has(self.validFrom) || self.validFrom < self.validUntil",message="validUntil must be after validFrom; to take a binding back before it begins, delete the object"
// +kubebuilder:validation:XValidation:rule="self.validUntil.getMilliseconds() == 0 && (!has(self.validFrom) || self.validFrom.getMilliseconds() == 0)",message="validFrom and validUntil are whole seconds"
// +kubebuilder:validation:XValidation:rule="has(self.validFrom) == has(oldSelf.validFrom) && (!has(self.validFrom) || self.validFrom == oldSelf.validFrom)",message="validFrom cannot be changed; make another object"
// +kubebuilder:validation:XValidation:rule="self.roleRef == oldSelf.roleRef",message="roleRef cannot be changed; make another object"
// +kubebuilder:validation:XValidation:rule="self.reason == oldSelf.reason",message="reason cannot be changed; make another object"
// +kubebuilder:validation:XValidation:rule="has(self.author) || !has(oldSelf.author)",message="author cannot be removed"
// +kubebuilder:validation:XValidation:rule="(has(self.author) == has(oldSelf.author) && (!has(self.author) || self.author == oldSelf.author)) || self.validUntil > oldSelf.validUntil || !self.subjects.all(s, s in oldSelf.subjects)",message="author cannot be changed"
type TransientBindingSpec struct {
	// ValidFrom is when the binding begins to exist, in whole seconds. Default: now.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ValidFrom *metav1.Time `json:"validFrom,omitempty"`
	// ValidUntil is from when on the binding does not exist any more, in whole seconds.
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	ValidUntil metav1.Time `json:"validUntil"`
	// RoleRef is the role, one that the operator lets be bound.
	RoleRef BoundRole `json:"roleRef"`
	// Subjects are to whom it is bound.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Subjects []BoundSubject `json:"subjects"`
	// Reason says why.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// Author is who made the object, or gave it a later end or another subject since. They
	// must hold the right to bind that very role, then and when it takes effect. The server
	// sets it, and refuses another.
	// +optional
	Author *Author `json:"author,omitempty"`
}

// TransientBindingStatus is what became of a transient binding. Only RoleUID, EndedAt and
// BindingUID have an effect, and they only take rights away.
type TransientBindingStatus struct {
	// Conditions has one, Effective: whether the binding exists, and if not, why.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime > timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime must be a time since 1970, such as 2030-01-31T12:00:00Z"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// RoleUID is the UID of the role when it was first seen. It cannot be changed: a role
	// that is deleted and made again is another one.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	RoleUID string `json:"roleUID,omitempty"`
	// BindingUID is the UID of the binding that exists, or did last.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BindingUID string `json:"bindingUID,omitempty"`
	// BeganAt is when the binding was first made.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	BeganAt *metav1.Time `json:"beganAt,omitempty"`
	// EndedAt is when it was removed because its time was over. It cannot be changed: what
	// has ended does not begin again.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self > timestamp('1970-01-01T00:00:00Z')",message="must be a time since 1970, such as 2030-01-31T12:00:00Z"
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
}

// TransientRoleBinding is a RoleBinding of its name in its namespace, from validFrom until
// validUntil.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=trb,categories={admitkit}
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.roleUID) || (has(self.status) && has(self.status.roleUID) && self.status.roleUID == oldSelf.status.roleUID)",message="status.roleUID cannot be changed: a role that was made again is another one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.endedAt) || (has(self.status) && has(self.status.endedAt) && self.status.endedAt == oldSelf.status.endedAt)",message="status.endedAt cannot be changed: what has ended does not begin again"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.endedAt) || (self.spec.validUntil <= oldSelf.spec.validUntil && self.spec.subjects.all(s, s in oldSelf.spec.subjects))",message="it has ended, and does not begin again; make another object"
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.roleRef.kind`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.roleRef.name`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.validFrom`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.validUntil`
// +kubebuilder:printcolumn:name="Effective",type=string,JSONPath=`.status.conditions[?(@.type=="Effective")].reason`
// +kubebuilder:printcolumn:name="Author",type=string,JSONPath=`.spec.author.username`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`,priority=1
type TransientRoleBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TransientBindingSpec `json:"spec"`
	// +optional
	Status TransientBindingStatus `json:"status,omitempty"`
}

// TransientRoleBindingList is a list of TransientRoleBindings.
// +kubebuilder:object:root=true
type TransientRoleBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TransientRoleBinding `json:"items"`
}

// TransientClusterRoleBinding is a ClusterRoleBinding of its name, from validFrom until
// validUntil.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=tcrb,categories={admitkit}
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.roleUID) || (has(self.status) && has(self.status.roleUID) && self.status.roleUID == oldSelf.status.roleUID)",message="status.roleUID cannot be changed: a role that was made again is another one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.endedAt) || (has(self.status) && has(self.status.endedAt) && self.status.endedAt == oldSelf.status.endedAt)",message="status.endedAt cannot be changed: what has ended does not begin again"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.endedAt) || (self.spec.validUntil <= oldSelf.spec.validUntil && self.spec.subjects.all(s, s in oldSelf.spec.subjects))",message="it has ended, and does not begin again; make another object"
// +kubebuilder:validation:XValidation:rule="self.spec.roleRef.kind == 'ClusterRole'",message="spec.roleRef.kind must be ClusterRole; a TransientRoleBinding binds a Role"
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.roleRef.name`
// +kubebuilder:printcolumn:name="From",type=string,JSONPath=`.spec.validFrom`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.validUntil`
// +kubebuilder:printcolumn:name="Effective",type=string,JSONPath=`.status.conditions[?(@.type=="Effective")].reason`
// +kubebuilder:printcolumn:name="Author",type=string,JSONPath=`.spec.author.username`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`,priority=1
type TransientClusterRoleBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TransientBindingSpec `json:"spec"`
	// +optional
	Status TransientBindingStatus `json:"status,omitempty"`
}

// TransientClusterRoleBindingList is a list of TransientClusterRoleBindings.
// +kubebuilder:object:root=true
type TransientClusterRoleBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TransientClusterRoleBinding `json:"items"`
}

// TransientBinding is either kind.
//
// +kubebuilder:object:generate=false
type TransientBinding interface {
	metav1.Object
	runtime.Object
	GetBindingSpec() *TransientBindingSpec
	GetBindingStatus() *TransientBindingStatus
}

var (
	_ TransientBinding = (*TransientRoleBinding)(nil)
	_ TransientBinding = (*TransientClusterRoleBinding)(nil)
)

// GetBindingSpec implements [TransientBinding].
func (b *TransientRoleBinding) GetBindingSpec() *TransientBindingSpec { return &b.Spec }

// GetBindingStatus implements [TransientBinding].
func (b *TransientRoleBinding) GetBindingStatus() *TransientBindingStatus { return &b.Status }

// GetBindingSpec implements [TransientBinding].
func (b *TransientClusterRoleBinding) GetBindingSpec() *TransientBindingSpec { return &b.Spec }

// GetBindingStatus implements [TransientBinding].
func (b *TransientClusterRoleBinding) GetBindingStatus() *TransientBindingStatus { return &b.Status }
