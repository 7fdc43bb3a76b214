// Package workload reads the targets of templates (workload.go), chooses among their Pods
// (choose.go) and sees changes of them (watch.go).
package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Workload is what access needs to know about the target of a template.
type Workload struct {
	// Template is the template of its Pods, and Claims are the volumes that a
	// StatefulSet claims for each of them.
	Template corev1.PodTemplateSpec
	Claims   []corev1.PersistentVolumeClaim
	// Selector matches its Pods, and perhaps others; nil for a plain Pod.
	Selector *metav1.LabelSelector

	ref    v1alpha1.ControllerTargetRef
	object client.Object
}

// Find reads a target from the API server. [Missing] tells whether an error says
// that it does not exist.
func Find(ctx context.Context, reader client.Reader, namespace string, ref v1alpha1.ControllerTargetRef) (*Workload, error) {
	if ref.Kind == "Rollout" {
		return findRollout(ctx, reader, namespace, ref)
	}
	object, read := empty(ref.Kind)
	if object == nil {
		return nil, fmt.Errorf("target %s: kind %q is not supported", ref, ref.Kind)
	}
	if err := get(ctx, reader, namespace, ref, object); err != nil {
		return nil, err
	}
	found := read()
	found.ref, found.object = ref, object
	return found, nil
}

// empty returns an object to read a target into, and what makes a workload of it
// then; nil for a kind that is not supported.
func empty(kind string) (into client.Object, read func() *Workload) {
	switch kind {
	case "Deployment":
		d := &appsv1.Deployment{}
		return d, func() *Workload { return &Workload{Template: d.Spec.Template, Selector: d.Spec.Selector} }
	case "DaemonSet":
		d := &appsv1.DaemonSet{}
		return d, func() *Workload { return &Workload{Template: d.Spec.Template, Selector: d.Spec.Selector} }
	case "StatefulSet":
		s := &appsv1.StatefulSet{}
		return s, func() *Workload {
			return &Workload{Template: s.Spec.Template, Selector: s.Spec.Selector, Claims: s.Spec.VolumeClaimTemplates}
		}
	case "ReplicaSet":
		r := &appsv1.ReplicaSet{}
		return r, func() *Workload { return &Workload{Template: r.Spec.Template, Selector: r.Spec.Selector} }
	case "Job":
		j := &batchv1.Job{}
		return j, func() *Workload { return &Workload{Template: j.Spec.Template, Selector: j.Spec.Selector} }
	case "CronJob":
		c := &batchv1.CronJob{}
		return c, func() *Workload { return &Workload{Template: c.Spec.JobTemplate.Spec.Template, Selector: podsOfJobs()} }
	case "Pod":
		p := &corev1.Pod{}
		return p, func() *Workload { return &Workload{Template: templateOf(p)} }
	}
	return nil, nil
}

// podsOfJobs matches the Pods of all Jobs, which the Job controller labels. Those
// of a CronJob have no other label in common.
func podsOfJobs() *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: batchv1.ControllerUidLabel, Operator: metav1.LabelSelectorOpExists}},
	}
}

func get(ctx context.Context, reader client.Reader, namespace string, ref v1alpha1.ControllerTargetRef, into client.Object) error {
	if err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, into); err != nil {
		return fmt.Errorf("target %s in namespace %s: %w", ref, namespace, err)
	}
	return nil
}

// findRollout reads an Argo Rollout, without Argo's Go types, which would bring in
// all of Argo. Its template may be that of a Deployment that it refers to.
func findRollout(ctx context.Context, reader client.Reader, namespace string, ref v1alpha1.ControllerTargetRef) (*Workload, error) {
	rollout := &unstructured.Unstructured{}
	rollout.SetAPIVersion(ref.APIVersion)
	rollout.SetKind(ref.Kind)
	if err := get(ctx, reader, namespace, ref, rollout); err != nil {
		return nil, err
	}
	var spec struct {
		Spec struct {
			Selector    *metav1.LabelSelector         `json:"selector"`
			Template    corev1.PodTemplateSpec        `json:"template"`
			WorkloadRef *v1alpha1.ControllerTargetRef `json:"workloadRef"`
		} `json:"spec"`
	}
	// The API server does not know that these are Pods, and so did not read them.
	if err := v1alpha1.CheckQuantities(rollout.Object, spec); err != nil {
		return nil, fmt.Errorf("target %s in namespace %s: %w", ref, namespace, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(rollout.Object, &spec); err != nil {
		return nil, fmt.Errorf("target %s in namespace %s: %w", ref, namespace, err)
	}
	found := &Workload{ref: ref, object: rollout, Template: spec.Spec.Template, Selector: spec.Spec.Selector}
	if from := spec.Spec.WorkloadRef; from != nil {
		if from.Kind == ref.Kind {
			return nil, fmt.Errorf("target %s in namespace %s: workloadRef refers to another Rollout", ref, namespace)
		}
		referred, err := Find(ctx, reader, namespace, *from)
		if err != nil {
			return nil, fmt.Errorf("target %s: workloadRef: %w", ref, err)
		}
		found.Template = referred.Template
		if found.Selector == nil {
			found.Selector = referred.Selector
		}
	}
	return found, nil
}

// templateOf makes a Pod template of a Pod, without what the API server and the
// scheduler wrote into it.
func templateOf(pod *corev1.Pod) corev1.PodTemplateSpec {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations},
		Spec:       *pod.Spec.DeepCopy(),
	}
	spec := &template.Spec
	spec.NodeName = ""
	spec.Priority, spec.PreemptionPolicy = nil, nil
	spec.EphemeralContainers = nil
	dropVolumes(spec, func(v corev1.Volume) bool {
		// The ServiceAccount admission plugin adds one of its own.
		return strings.HasPrefix(v.Name, tokenVolume)
	})
	return template
}

// tokenVolume begins the name of the volume that the ServiceAccount admission
// plugin adds to Pods.
const tokenVolume = "kube-api-access-"

// dropVolumes removes volumes and their mounts.
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

// Missing reports whether an error says that a target, or its kind, does not exist.
func Missing(err error) bool {
	return apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}
