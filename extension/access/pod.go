package access

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// newPod returns the Pod that a template describes, without a name: a copy
// of its target's Pod template, or its own Pod spec, made harmless and mutated.
// target is nil if the template has a Pod spec of its own.
func newPod(t *v1alpha1.PodAccessTemplate, target *workload) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	var claims []corev1.PersistentVolumeClaim
	if target != nil {
		template := target.template.DeepCopy()
		pod.Labels, pod.Annotations, pod.Spec = template.Labels, template.Annotations, template.Spec
		claims = target.claims
	} else {
		pod.Spec = *t.Spec.PodSpec.DeepCopy()
	}
	return pod, treat(pod, claims, t)
}

// treat makes a Pod an access Pod: harmless, mutated as the template says, and
// within its caps. It ends what the Pod was to others: labels first of all.
func treat(pod *corev1.Pod, claims []corev1.PersistentVolumeClaim, t *v1alpha1.PodAccessTemplate) error {
	config := t.Spec.ControllerTargetMutationConfig
	if config == nil {
		config = &v1alpha1.PodTemplateSpecMutationConfig{}
	}
	if len(pod.Spec.Containers) == 0 {
		return fmt.Errorf("spec.podSpec: containers: there is none")
	}
	index, err := defaultContainer(pod, config.DefaultContainerName)
	if err != nil {
		return err
	}
	makeHarmless(pod, index, config)
	replaceClaims(&pod.Spec, claims, config.ClaimTemplates)
	mutate(pod, index, config)
	if err := applyPatch(pod, config.PatchSpecOperations); err != nil {
		return fmt.Errorf("spec.controllerTargetMutationConfig.patchSpecOperations: %w", err)
	}
	return enforceCaps(&pod.Spec, t)
}

// backstop makes the kubelet end a Pod at the latest moment at which access may
// end, should nobody delete it: a deadline cannot be prolonged afterwards, as a
// grant can.
func backstop(spec *corev1.PodSpec, limit time.Duration) {
	seconds := int64(math.Ceil(limit.Seconds()))
	if spec.ActiveDeadlineSeconds == nil || *spec.ActiveDeadlineSeconds > seconds {
		spec.ActiveDeadlineSeconds = &seconds
	}
}

// annotationDefaultContainer is kubectl's.
const annotationDefaultContainer = "kubectl.kubernetes.io/default-container"

func defaultContainer(pod *corev1.Pod, name string) (int, error) {
	field := "spec.controllerTargetMutationConfig.defaultContainerName"
	if name == "" {
		name, field = pod.Annotations[annotationDefaultContainer], "annotation "+annotationDefaultContainer
	}
	if name == "" {
		return 0, nil
	}
	index := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if index < 0 {
		return 0, fmt.Errorf("%s: the Pod has no container %q", field, name)
	}
	return index, nil
}

// makeHarmless removes what makes a Pod part of its workload, whatever the
// template says about the rest.
func makeHarmless(pod *corev1.Pod, index int, config *v1alpha1.PodTemplateSpecMutationConfig) {
	// Services, ReplicaSets, PodDisruptionBudgets and NetworkPolicies select by
	// labels.
	pod.Labels = nil
	// It has been treated now.
	delete(pod.Annotations, AnnotationTemplate)
	spec := &pod.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.NodeName = ""
	// Nobody would open these gates, nor add these conditions.
	spec.SchedulingGates, spec.ReadinessGates = nil, nil
	// The name by which peers find a StatefulSet's Pod.
	spec.Hostname, spec.Subdomain = "", ""
	if !config.KeepTerminationGracePeriod {
		// Not zero, with which the Pod's name would be free before it has ended.
		second := int64(1)
		spec.TerminationGracePeriodSeconds = &second
	}
	if !config.KeepTopologySpreadConstraints {
		spec.TopologySpreadConstraints = nil
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			// Hooks announce a Pod to the world; a port of the host is taken.
			c.Lifecycle = nil
			for p := range c.Ports {
				if !spec.HostNetwork {
					c.Ports[p].HostPort = 0
				}
			}
		}
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		isDefault := i == index
		if !isDefault || !config.KeepLivenessProbe {
			c.LivenessProbe = nil
		}
		if !isDefault || !config.KeepReadinessProbe {
			c.ReadinessProbe = nil
		}
		if !isDefault || !config.KeepStartupProbe {
			c.StartupProbe = nil
		}
	}
	for i := range spec.InitContainers {
		// Only sidecars have probes; without them they count as started at once.
		c := &spec.InitContainers[i]
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
	}
}

// replaceClaims puts something in place of the volumes that a StatefulSet claims
// for each Pod. Without it the containers would mount what is not there.
func replaceClaims(spec *corev1.PodSpec, claims []corev1.PersistentVolumeClaim, by v1alpha1.ClaimTemplates) {
	for _, claim := range claims {
		source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		if by == v1alpha1.ClaimTemplatesEphemeral {
			source = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: *claim.Spec.DeepCopy()},
			}}
		}
		// A claim takes precedence over a volume of its name in the template.
		spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == claim.Name })
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: source})
	}
}

// mutate does what the author of the template wants to be different.
func mutate(pod *corev1.Pod, index int, config *v1alpha1.PodTemplateSpecMutationConfig) {
	container := &pod.Spec.Containers[index]
	if config.Command != nil {
		container.Command, container.Args = slices.Clone(*config.Command), nil
	}
	if config.Args != nil {
		container.Args = slices.Clone(*config.Args)
	}
	container.Env = mergeEnv(container.Env, config.Env)
	if r := config.Resources; len(r.Limits)+len(r.Requests)+len(r.Claims) > 0 {
		container.Resources = *r.DeepCopy()
	}
	if config.PurgeAnnotations {
		pod.Annotations = nil
	}
	pod.Annotations = merged(pod.Annotations, config.PodAnnotations)
	pod.Labels = merged(pod.Labels, config.PodLabels)
	pod.Spec.NodeSelector = merged(pod.Spec.NodeSelector, config.NodeSelector)
	if config.DefaultContainerName != "" {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationDefaultContainer, config.DefaultContainerName)
	}
}

// mergeEnv merges by name. The order stays, since a value may refer to those
// before it.
func mergeEnv(env, changes []corev1.EnvVar) []corev1.EnvVar {
	env = slices.Clone(env)
	for _, change := range changes {
		if i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == change.Name }); i >= 0 {
			env[i] = change
		} else {
			env = append(env, change)
		}
	}
	return env
}

func merged(into, from map[string]string) map[string]string {
	if len(from) == 0 {
		return into
	}
	result := maps.Clone(into)
	if result == nil {
		result = map[string]string{}
	}
	maps.Copy(result, from)
	return result
}

// dropVolumes removes volumes and what mounts them.
func dropVolumes(spec *corev1.PodSpec, drop func(corev1.Volume) bool) {
	dropped := map[string]bool{}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		dropped[v.Name] = drop(v)
		return dropped[v.Name]
	})
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return dropped[m.Name] })
		}
	}
}
