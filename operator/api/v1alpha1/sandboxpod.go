package v1alpha1

import corev1 "k8s.io/api/core/v1"

// SandboxPod is where the Pods of runs run, and by which runtime. The fields are those of a Pod.
type SandboxPod struct {
	// RuntimeClassName names a RuntimeClass, such as that of gVisor or Kata Containers, which keeps the work from the
	// kernel of its node. Default: the cluster's own runtime.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// PriorityClassName names a PriorityClass. Default: the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// ImagePullSecrets are Secrets of the run's namespace by which its node pulls the image.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// ResourceClaims are claims of devices, in the run's namespace, all for the container.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	ResourceClaims []corev1.PodResourceClaim `json:"resourceClaims,omitempty"`
	// Devices are how many of each extended resource, such as nvidia.com/gpu, the container has.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Devices map[string]int64 `json:"devices,omitempty"`
}
