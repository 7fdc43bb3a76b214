// Package pod makes access Pods: copies of a workload's Pods, or of a Pod spec, that
// are harmless to the workload, changed as a template says, and within its caps.
package pod

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// AnnotationTemplate on a Pod names the PodAccessTemplate by which it is treated
// when it is created.
const AnnotationTemplate = "admitkit.dev/access-template"

// New returns the Pod that a template describes, with the metadata given: a copy of
// its target's Pod template, or of its own Pod spec, treated by [Treat]. target is
// nil if the template has a Pod spec of its own.
func New(meta metav1.ObjectMeta, t *v1alpha1.PodAccessTemplate, target *workload.Workload, limit time.Duration) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	var claims []corev1.PersistentVolumeClaim
	if target != nil {
		template := target.Template.DeepCopy()
		pod.Labels, pod.Annotations, pod.Spec = template.Labels, template.Annotations, template.Spec
		claims = target.Claims
	} else {
		pod.Spec = *t.Spec.PodSpec.DeepCopy()
	}
	if err := Treat(pod, claims, t, limit); err != nil {
		return nil, err
	}
	for key := range meta.Labels {
		if _, taken := pod.Labels[key]; taken { // not the target's, which are gone
			return nil, fmt.Errorf("spec.controllerTargetMutationConfig: the label %s of access Pods is admitkit's own; leave it out", key)
		}
	}
	meta.Labels, meta.Annotations = merged(pod.Labels, meta.Labels), merged(pod.Annotations, meta.Annotations)
	pod.ObjectMeta = meta
	return pod, nil
}

// Treat makes a Pod an access Pod: harmless, changed as the template says, within
// its caps, and ended by the kubelet when limit, the longest time that the template
// allows, is over. claims are the volumes that a StatefulSet would claim for it.
func Treat(pod *corev1.Pod, claims []corev1.PersistentVolumeClaim, t *v1alpha1.PodAccessTemplate, limit time.Duration) error {
	config := t.Spec.ControllerTargetMutationConfig
	if config == nil {
		config = &v1alpha1.PodTemplateSpecMutationConfig{}
	}
	if len(pod.Spec.Containers) == 0 {
		return fmt.Errorf("spec.podSpec: containers: at least one is required")
	}
	if err := tooLarge(&pod.Spec); err != nil {
		return err
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
	if err := tooLarge(&pod.Spec); err != nil { // the patch may have added some
		return err
	}
	backstop(&pod.Spec, limit)
	return enforceCaps(&pod.Spec, t)
}

// The limits of an access Pod. Shares of the caps, and volumes, are found by comparing
// each with each.
const (
	maxContainers = 256
	maxVolumes    = 1024
)

// tooLarge refuses a Pod with more containers or volumes than any has.
func tooLarge(spec *corev1.PodSpec) error {
	if n := len(spec.Containers) + len(spec.InitContainers); n > maxContainers {
		return fmt.Errorf("the Pod has %d containers, at most %d are allowed", n, maxContainers)
	}
	if n := len(spec.Volumes); n > maxVolumes {
		return fmt.Errorf("the Pod has %d volumes, at most %d are allowed", n, maxVolumes)
	}
	return nil
}

// backstop makes the kubelet end a Pod when access may last no longer, should
// nobody delete it. The deadline is the template's maximum and not the request's
// end: a grant can be extended, a deadline cannot.
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
	// The annotation asks for this treatment.
	delete(pod.Annotations, AnnotationTemplate)
	spec := &pod.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	spec.NodeName = ""
	// Nobody would open these gates, nor add these conditions.
	spec.SchedulingGates, spec.ReadinessGates = nil, nil
	// Peers find a StatefulSet's Pod by this name.
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
			withdraw(&containers[i], spec.HostNetwork)
		}
	}
	removeProbes(spec, index, config)
}

// withdraw keeps a container from announcing itself to the world by hooks, and
// from taking a port of the host. With the host's network a port must equal the
// host's.
func withdraw(c *corev1.Container, hostNetwork bool) {
	c.Lifecycle = nil
	for i := range c.Ports {
		if !hostNetwork {
			c.Ports[i].HostPort = 0
		}
	}
}

// removeProbes leaves only the probes of the default container that the template
// keeps. A sidecar without probes counts as started at once.
func removeProbes(spec *corev1.PodSpec, index int, config *v1alpha1.PodTemplateSpecMutationConfig) {
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
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
}

// replaceClaims replaces the volumes that a StatefulSet claims for each Pod.
// Without it the containers would mount volumes that do not exist.
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

// mutate makes the changes that the template asks for.
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
	if config.SecurityContext != nil {
		container.SecurityContext = config.SecurityContext.DeepCopy()
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

// mergeEnv merges by name and keeps the order, since a value may refer to those
// before it.
func mergeEnv(env, changes []corev1.EnvVar) []corev1.EnvVar {
	env = slices.Clone(env)
	first := map[string]int{}
	for i, e := range slices.Backward(env) {
		first[e.Name] = i
	}
	for _, change := range changes {
		if i, found := first[change.Name]; found {
			env[i] = change
		} else {
			first[change.Name] = len(env)
			env = append(env, change)
		}
	}
	return env
}

// merged returns the entries of both maps; those of from win.
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
