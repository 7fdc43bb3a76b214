package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// ClaimTemplates says what replaces, in an access Pod, the volumes that a StatefulSet
// claims for each of its Pods.
// +kubebuilder:validation:Enum=EmptyDir;Ephemeral
type ClaimTemplates string

// What replaces a StatefulSet's claims.
const (
	// ClaimTemplatesEmptyDir is an empty folder on the node.
	ClaimTemplatesEmptyDir ClaimTemplates = "EmptyDir"
	// ClaimTemplatesEphemeral is a new, empty volume of the same claim, which
	// goes with the access Pod.
	ClaimTemplatesEphemeral ClaimTemplates = "Ephemeral"
)

// PodTemplateSpecMutationConfig says how an access Pod differs from the Pods of its
// target, beyond what makes it harmless in any case.
type PodTemplateSpecMutationConfig struct {
	// DefaultContainerName is the container that command, args, env, resources,
	// securityContext and the probes are about. Default: that of the annotation
	// kubectl.kubernetes.io/default-container, or the first one.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	DefaultContainerName string `json:"defaultContainerName,omitempty"`

	// Command replaces the container's command, and removes its args.
	// +optional
	Command *[]string `json:"command,omitempty"`

	// Args replaces the container's args.
	// +optional
	Args *[]string `json:"args,omitempty"`

	// Env is merged by name into the container's env: an existing variable is
	// replaced, a new one is added at the end.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`

	// Resources replaces the container's resources.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// SecurityContext replaces the container's security context.
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`

	// PodAnnotations are added to the Pod's annotations.
	// +optional
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`

	// PodLabels are the Pod's labels, besides those of admitkit. The target's labels
	// are always removed, so that nothing mistakes the Pod for one of the target's.
	// +optional
	PodLabels map[string]string `json:"podLabels,omitempty"`

	// NodeSelector is added to the Pod's nodeSelector.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// PurgeAnnotations removes the target's annotations.
	// +optional
	PurgeAnnotations bool `json:"purgeAnnotations,omitempty"`

	// KeepLivenessProbe keeps the container's liveness probe.
	// +optional
	KeepLivenessProbe bool `json:"keepLivenessProbe,omitempty"`

	// KeepReadinessProbe keeps the container's readiness probe.
	// +optional
	KeepReadinessProbe bool `json:"keepReadinessProbe,omitempty"`

	// KeepStartupProbe keeps the container's startup probe.
	// +optional
	KeepStartupProbe bool `json:"keepStartupProbe,omitempty"`

	// KeepTerminationGracePeriod keeps the target's termination grace period.
	// Otherwise it is one second, so that sessions end when access does.
	// +optional
	KeepTerminationGracePeriod bool `json:"keepTerminationGracePeriod,omitempty"`

	// KeepTopologySpreadConstraints keeps the target's constraints.
	// +optional
	KeepTopologySpreadConstraints bool `json:"keepTopologySpreadConstraints,omitempty"`

	// ClaimTemplates says what replaces the volume claims of a StatefulSet.
	// +optional
	// +kubebuilder:default=EmptyDir
	ClaimTemplates ClaimTemplates `json:"claimTemplates,omitempty"`

	// PatchSpecOperations are applied last: a JSON Patch (RFC 6902) of the Pod,
	// with paths such as /spec/containers/0/image. Of the metadata it may change
	// labels and annotations. All copies together may add 256 KiB, and the result may
	// have 1.5 MiB.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	PatchSpecOperations []JSONPatchOperation `json:"patchSpecOperations,omitempty"`
}

// JSONPatchOperation is an operation of RFC 6902, section 4.
// +kubebuilder:validation:XValidation:rule="!(self.op in ['move', 'copy']) || has(self.from)",message="move and copy need from"
type JSONPatchOperation struct {
	// Operation is add, remove, replace, move, copy or test.
	// +kubebuilder:validation:Enum=add;remove;replace;move;copy;test
	Operation string `json:"op"`
	// Path is the JSON Pointer (RFC 6901) of what is changed.
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path"`
	// From is the JSON Pointer of what move and copy take.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	From string `json:"from,omitempty"`
	// Value is any JSON value, for add, replace and test. Default: null.
	// +optional
	// +nullable
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}
