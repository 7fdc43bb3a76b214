// Package recorded knows what a Pod has whose sessions are recorded: pod.go puts the recorder
// into it and recognises it there, command.go reads commands as the kubelet does.
package recorded

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// What is put into Pods. The names are reserved in the namespaces where sessions are
// recorded.
const (
	// ContainerName is that of the init container that copies the recorder.
	ContainerName = v1alpha1.RecorderContainer
	// VolumeName is that of the volume with the recorder, which is mounted at MountPath.
	VolumeName = "admitkit-session"
	MountPath  = "/.admitkit"
	// tokenVolumeName is that of the volume with the token for collectors, mounted at TokenPath.
	tokenVolumeName = "admitkit-session-token"
	TokenPath       = "/.admitkit-token"

	// Audience is that of the tokens which collectors take.
	Audience = "admitkit.dev/sessions"
	// defaultContainer is the annotation by which kubectl goes:
	// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubectl-kubernetes-io-default-container
	defaultContainer = "kubectl.kubernetes.io/default-container"
	// tokenSeconds is how long a token is valid. The kubelet renews it before.
	tokenSeconds = 3600
	// AnyUser is the UID of the images and so of the installer: Pod Security's restricted profile forbids root.
	AnyUser = 65532
)

// Inject puts the recorder into every container of a Pod. What has a reserved name already
// stays as it is.
func Inject(pod *corev1.Pod, image string) {
	spec := &pod.Spec
	nameContainer(pod)
	for _, volume := range []corev1.Volume{Volume(), TokenVolume()} {
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name }) {
			spec.Volumes = append(spec.Volumes, volume)
		}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for j := range containers {
			if containers[j].Name != ContainerName {
				mount(&containers[j])
			}
		}
	}
	if !slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == ContainerName }) {
		spec.InitContainers = slices.Insert(spec.InitContainers, 0, Installer(image))
	}
}

// nameContainer says which container kubectl means by default. Otherwise the init container
// of the recorder would have it say of a Pod with one container which one it has chosen.
func nameContainer(pod *corev1.Pod) {
	if len(pod.Spec.Containers) == 1 && len(pod.Spec.InitContainers) == 0 && pod.Annotations[defaultContainer] == "" {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, defaultContainer, pod.Spec.Containers[0].Name)
	}
}

// CanHaveRecorder reports whether the recorder runs in a Pod: not in one of Windows, nor in
// a static one, which nobody can change.
func CanHaveRecorder(pod *corev1.Pod) bool {
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return !isMirror && (pod.Spec.OS == nil || pod.Spec.OS.Name != corev1.Windows)
}

// Volume returns the volume with the recorder.
func Volume() corev1.Volume {
	return corev1.Volume{Name: VolumeName, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(16<<20, resource.BinarySI)},
	}}
}

// TokenVolume returns the volume with the token for collectors.
func TokenVolume() corev1.Volume {
	return corev1.Volume{Name: tokenVolumeName, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(0o644)),
		Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: Audience, ExpirationSeconds: new(int64(tokenSeconds)), Path: "token"},
		}},
	}}}
}

// Mounts are what each container has.
func Mounts() []corev1.VolumeMount {
	return []corev1.VolumeMount{
		{Name: VolumeName, MountPath: MountPath, ReadOnly: true},
		{Name: tokenVolumeName, MountPath: TokenPath, ReadOnly: true},
	}
}

func mount(c *corev1.Container) {
	for _, m := range Mounts() {
		if !slices.ContainsFunc(c.VolumeMounts, func(other corev1.VolumeMount) bool { return other.Name == m.Name }) {
			c.VolumeMounts = append(c.VolumeMounts, m)
		}
	}
}

// Installer copies the recorder. It is as Pod Security's restricted profile wants it,
// whatever the Pod is.
func Installer(image string) corev1.Container {
	few := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	return corev1.Container{
		Name: ContainerName, Image: image, Args: []string{"install", MountPath},
		VolumeMounts: []corev1.VolumeMount{{Name: VolumeName, MountPath: MountPath}},
		Resources:    corev1.ResourceRequirements{Requests: few, Limits: few},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(AnyUser)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// NamesRecorder reports whether a command of a user begins with something in the folder of
// the recorder.
func NamesRecorder(command []string) bool {
	if len(command) == 0 {
		return false
	}
	clean := path.Clean("/" + command[0])
	return clean == MountPath || strings.HasPrefix(clean, MountPath+"/") || strings.Contains(clean, MountPath+"/")
}

// ContainerOf returns the container of a connection: the API server takes the only one if
// the client names none.
func ContainerOf(pod *corev1.Pod, named string) string {
	if named == "" && len(pod.Spec.Containers) == 1 {
		return pod.Spec.Containers[0].Name
	}
	return named
}

// HasVolume reports whether a Pod has the recorder.
func HasVolume(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == VolumeName && v.EmptyDir != nil })
}

// HasRecorder reports whether a container has the recorder.
func HasRecorder(pod *corev1.Pod, container string) bool {
	if !HasVolume(pod) {
		return false
	}
	mounted := func(mounts []corev1.VolumeMount) bool {
		return slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool {
			return m.Name == VolumeName && path.Clean(m.MountPath) == MountPath && m.ReadOnly && m.SubPath == "" && m.SubPathExpr == ""
		})
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if c.Name == container {
			return mounted(c.VolumeMounts)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; c.Name == container {
			return mounted(c.VolumeMounts)
		}
	}
	return false
}
