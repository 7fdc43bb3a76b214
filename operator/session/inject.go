package session

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// What is put into Pods. The names are reserved in the namespaces where sessions are
// recorded.
const (
	// installerName is the init container that copies the recorder.
	installerName = v1alpha1.RecorderContainer
	// volumeName is the volume with the recorder, which is mounted at mountPath.
	volumeName = "admitkit-session"
	mountPath  = "/.admitkit"
	// tokenVolumeName is the volume with the token for collectors, mounted at tokenPath.
	tokenVolumeName = "admitkit-session-token"
	tokenPath       = "/.admitkit-token"

	// Audience is that of the tokens which collectors take.
	Audience = "admitkit.dev/sessions"
	// defaultContainer is the annotation by which kubectl goes:
	// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubectl-kubernetes-io-default-container
	defaultContainer = "kubectl.kubernetes.io/default-container"
	// tokenSeconds is how long a token is valid. The kubelet renews it before.
	tokenSeconds = 3600
	// anyUser is the UID of the images and so of the installer: Pod Security's restricted profile forbids root.
	anyUser = 65532
)

// injector puts the recorder into new Pods.
type injector struct{ *shared }

var _ extension.Mutator[*corev1.Pod] = (*injector)(nil)

func (i *injector) scope() extension.Scope {
	scope := i.options.podScope("sessions-pods", extension.Pods())
	// Another webhook may add a container afterwards, which needs the recorder, too.
	scope.ReinvocationPolicy = new(admissionregistrationv1.IfNeededReinvocationPolicy)
	return scope
}

func (o *Options) podScope(name string, rules []admissionregistrationv1.RuleWithOperations) extension.Scope {
	scope := o.scope(name)
	scope.Rules = rules
	return scope
}

// Mutate puts the recorder into every container of a Pod. What has a reserved name already
// stays as it is, for podGuard to judge.
func (i *injector) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	if !canHaveRecorder(pod) {
		return nil
	}
	spec := &pod.Spec
	nameContainer(pod)
	for _, volume := range []corev1.Volume{recorderVolume(), tokenVolume()} {
		if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name }) {
			spec.Volumes = append(spec.Volumes, volume)
		}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for j := range containers {
			if containers[j].Name != installerName {
				mount(&containers[j])
			}
		}
	}
	if !slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == installerName }) {
		spec.InitContainers = slices.Insert(spec.InitContainers, 0, i.options.installer())
	}
	return nil
}

// nameContainer says which container kubectl means by default. Otherwise the init container
// of the recorder would have it say of a Pod with one container which one it has chosen.
func nameContainer(pod *corev1.Pod) {
	if len(pod.Spec.Containers) == 1 && len(pod.Spec.InitContainers) == 0 && pod.Annotations[defaultContainer] == "" {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, defaultContainer, pod.Spec.Containers[0].Name)
	}
}

// canHaveRecorder reports whether the recorder runs in a Pod: not in one of Windows, nor in
// a static one, which nobody can change.
func canHaveRecorder(pod *corev1.Pod) bool {
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return !isMirror && (pod.Spec.OS == nil || pod.Spec.OS.Name != corev1.Windows)
}

func recorderVolume() corev1.Volume {
	return corev1.Volume{Name: volumeName, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(16<<20, resource.BinarySI)},
	}}
}

func tokenVolume() corev1.Volume {
	return corev1.Volume{Name: tokenVolumeName, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(0o644)),
		Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: Audience, ExpirationSeconds: new(int64(tokenSeconds)), Path: "token"},
		}},
	}}}
}

// mounts are what each container has.
func mounts() []corev1.VolumeMount {
	return []corev1.VolumeMount{
		{Name: volumeName, MountPath: mountPath, ReadOnly: true},
		{Name: tokenVolumeName, MountPath: tokenPath, ReadOnly: true},
	}
}

func mount(c *corev1.Container) {
	for _, m := range mounts() {
		if !slices.ContainsFunc(c.VolumeMounts, func(other corev1.VolumeMount) bool { return other.Name == m.Name }) {
			c.VolumeMounts = append(c.VolumeMounts, m)
		}
	}
}

// installer copies the recorder. It is as Pod Security's restricted profile wants it,
// whatever the Pod is.
func (o *Options) installer() corev1.Container {
	few := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	return corev1.Container{
		Name: installerName, Image: o.Image, Args: []string{"install", mountPath},
		VolumeMounts: []corev1.VolumeMount{{Name: volumeName, MountPath: mountPath}},
		Resources:    corev1.ResourceRequirements{Requests: few, Limits: few},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(anyUser)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}
