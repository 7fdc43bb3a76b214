// Package v1alpha1 has the kinds of time-limited access and of auditing, in the
// API group admitkit.dev:
//
//   - A [PodAccessTemplate] says who may get a Pod of their own, made after a
//     workload's Pod template, and for how long.
//   - An [ExecAccessTemplate] says the same about the Pods that a workload runs.
//   - A [RoleAccessTemplate] says the same about a role of its namespace, or a ClusterRole.
//   - A [PodAccessRequest], [ExecAccessRequest] or [RoleAccessRequest] is an engineer's
//     request: the name of a template and, optionally, a duration. Its status says when
//     access is ready, how to use it, and when it ends.
//   - An [AccessDecision] approves or denies a request, where its template wants that.
//   - An [AuditEvent] records who took which way into a container.
//   - A [SandboxRun] is work that nobody trusts, in a Pod that reaches only what its
//     [SandboxRunTemplate] or [ClusterSandboxRunTemplate] names.
//   - A [BrokerPolicy] says which names and credentials sandboxed runs have, and a
//     [CredentialLease] records that a run has a credential.
//
// [Request] and [Template] are what the kinds of access have in common, and [Grant]
// is what the record of a grant says. Packages operator/access and operator/audit
// give the kinds their meaning. Fields that the Oz RBAC Controller knows have the
// names that they have there.
//
// +kubebuilder:object:generate=true
// +groupName=admitkit.dev
package v1alpha1

//go:generate controller-gen object crd:crdVersions=v1 paths=. output:crd:dir=../../config/crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "admitkit.dev", Version: "v1alpha1"}

// AddToScheme adds this package's kinds to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&PodAccessTemplate{}, &PodAccessTemplateList{},
		&ExecAccessTemplate{}, &ExecAccessTemplateList{},
		&PodAccessRequest{}, &PodAccessRequestList{},
		&ExecAccessRequest{}, &ExecAccessRequestList{},
		&RoleAccessTemplate{}, &RoleAccessTemplateList{},
		&RoleAccessRequest{}, &RoleAccessRequestList{},
		&AccessDecision{}, &AccessDecisionList{},
		&AuditEvent{}, &AuditEventList{},
		&TransientRoleBinding{}, &TransientRoleBindingList{},
		&TransientClusterRoleBinding{}, &TransientClusterRoleBindingList{},
		&SandboxRunTemplate{}, &SandboxRunTemplateList{},
		&ClusterSandboxRunTemplate{}, &ClusterSandboxRunTemplateList{},
		&SandboxRun{}, &SandboxRunList{},
		&Workspace{}, &WorkspaceList{},
		&BrokerPolicy{}, &BrokerPolicyList{},
		&CredentialLease{}, &CredentialLeaseList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
