package access

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// workload is the target of a template, as far as access is concerned.
type workload struct {
	object   client.Object
	template corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
	// selector finds the Pods, among others perhaps; nil for a plain Pod.
	selector *metav1.LabelSelector
}

// findWorkload reads a target from the API server. The error is NotFound when it
// is not there.
func findWorkload(ctx context.Context, reader client.Reader, namespace string, ref v1alpha1.ControllerTargetRef) (*workload, error) {
	key := types.NamespacedName{Namespace: namespace, Name: ref.Name}
	get := func(into client.Object) error {
		if err := reader.Get(ctx, key, into); err != nil {
			return fmt.Errorf("target %s in namespace %s: %w", ref, namespace, err)
		}
		return nil
	}
	switch ref.Kind {
	case "Deployment":
		var d appsv1.Deployment
		err := get(&d)
		return &workload{object: &d, template: d.Spec.Template, selector: d.Spec.Selector}, err
	case "DaemonSet":
		var d appsv1.DaemonSet
		err := get(&d)
		return &workload{object: &d, template: d.Spec.Template, selector: d.Spec.Selector}, err
	case "StatefulSet":
		var s appsv1.StatefulSet
		err := get(&s)
		return &workload{object: &s, template: s.Spec.Template, selector: s.Spec.Selector, claims: s.Spec.VolumeClaimTemplates}, err
	case "ReplicaSet":
		var r appsv1.ReplicaSet
		err := get(&r)
		return &workload{object: &r, template: r.Spec.Template, selector: r.Spec.Selector}, err
	case "Job":
		var j batchv1.Job
		err := get(&j)
		return &workload{object: &j, template: j.Spec.Template, selector: j.Spec.Selector}, err
	case "CronJob":
		var c batchv1.CronJob
		err := get(&c)
		// Its Pods are those of its Jobs, which carry a label of the Job controller.
		return &workload{object: &c, template: c.Spec.JobTemplate.Spec.Template, selector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: batchv1.ControllerUidLabel, Operator: metav1.LabelSelectorOpExists}},
		}}, err
	case "Pod":
		var p corev1.Pod
		err := get(&p)
		return &workload{object: &p, template: templateOf(&p)}, err
	case "Rollout":
		return findRollout(ctx, reader, namespace, ref, get)
	}
	return nil, fmt.Errorf("target %s: kind %q is not supported", ref, ref.Kind)
}

// findRollout reads a Rollout of Argo, whose Go types would bring all of Argo
// with them. Its template may be that of a Deployment it refers to.
func findRollout(ctx context.Context, reader client.Reader, namespace string, ref v1alpha1.ControllerTargetRef, get func(client.Object) error) (*workload, error) {
	rollout := &unstructured.Unstructured{}
	rollout.SetAPIVersion(ref.APIVersion)
	rollout.SetKind(ref.Kind)
	if err := get(rollout); err != nil {
		return nil, err
	}
	var spec struct {
		Spec struct {
			Selector    *metav1.LabelSelector         `json:"selector"`
			Template    corev1.PodTemplateSpec        `json:"template"`
			WorkloadRef *v1alpha1.ControllerTargetRef `json:"workloadRef"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(rollout.Object, &spec); err != nil {
		return nil, fmt.Errorf("target %s in namespace %s: %w", ref, namespace, err)
	}
	found := &workload{object: rollout, template: spec.Spec.Template, selector: spec.Spec.Selector}
	if from := spec.Spec.WorkloadRef; from != nil {
		if from.Kind == ref.Kind {
			return nil, fmt.Errorf("target %s in namespace %s: workloadRef refers to another Rollout", ref, namespace)
		}
		referred, err := findWorkload(ctx, reader, namespace, *from)
		if err != nil {
			return nil, fmt.Errorf("target %s: workloadRef: %w", ref, err)
		}
		found.template = referred.template
		if found.selector == nil {
			found.selector = referred.selector
		}
	}
	return found, nil
}

// templateOf makes a Pod template of a Pod: without what the API server and the
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

// errNoPod says that no Pod of a workload can be given access to, for now.
var errNoPod = errors.New("no Pod")

// choosePod returns a Pod of the workload that runs, is ready and is not going
// away: the named one, or any. It is errNoPod when there is none yet.
func (w *workload) choosePod(ctx context.Context, reader client.Reader, name string) (*corev1.Pod, error) {
	if pod, ok := w.object.(*corev1.Pod); ok && (name == "" || name == pod.Name) {
		name = pod.Name
	}
	if name != "" {
		pod, err := w.ownedPod(ctx, reader, name)
		if err != nil {
			return nil, err
		}
		if !podReady(pod) {
			return nil, fmt.Errorf("%w: Pod %s/%s is not ready, or is going away", errNoPod, pod.Namespace, pod.Name)
		}
		return pod, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(w.object.GetNamespace()), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	owners := &owners{reader: reader, namespace: w.object.GetNamespace(), root: w.object.GetUID(), known: map[types.UID]bool{}}
	for _, i := range rand.Perm(len(pods.Items)) { //nolint:gosec // it spreads load, and is no secret
		pod := &pods.Items[i]
		if !podReady(pod) {
			continue
		}
		owned, err := owners.owns(ctx, pod)
		if err != nil {
			return nil, err
		}
		if owned {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("%w of %s %s/%s is ready", errNoPod, kindOf(w.object), w.object.GetNamespace(), w.object.GetName())
}

// ownedPod returns the named Pod if it is the workload's, as its selector and
// its chain of owners say.
func (w *workload) ownedPod(ctx context.Context, reader client.Reader, name string) (*corev1.Pod, error) {
	namespace := w.object.GetNamespace()
	var pod corev1.Pod
	if err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pod); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, refuse(v1alpha1.ReasonUnknownPod, "Pod %s/%s does not exist", namespace, name)
		}
		return nil, err
	}
	owners := &owners{reader: reader, namespace: namespace, root: w.object.GetUID(), known: map[types.UID]bool{}}
	owned, err := owners.owns(ctx, &pod)
	if err != nil {
		return nil, err
	}
	if selector, err := w.labels(); err != nil || !owned || !selector.Matches(labels.Set(pod.Labels)) {
		return nil, refuse(v1alpha1.ReasonUnknownPod, "Pod %s/%s is not one of %s %q", namespace, name, kindOf(w.object), w.object.GetName())
	}
	return &pod, nil
}

// labels returns the selector; a plain Pod needs none.
func (w *workload) labels() (labels.Selector, error) {
	if w.selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(w.selector)
}

// owners finds out whether Pods belong to a workload, by their controllers and
// the controllers of these. A label says nothing: whoever may create a Pod
// chooses its labels.
type owners struct {
	reader    client.Reader
	namespace string
	root      types.UID
	known     map[types.UID]bool
}

func (o *owners) owns(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if pod.UID == o.root {
		return true, nil
	}
	controller := metav1.GetControllerOf(pod)
	if controller == nil {
		return false, nil
	}
	if controller.UID == o.root {
		return true, nil
	}
	if owned, known := o.known[controller.UID]; known {
		return owned, nil
	}
	// What lies between: a Deployment's or Rollout's ReplicaSet, a CronJob's Job.
	switch controller.APIVersion + "/" + controller.Kind {
	case "apps/v1/ReplicaSet", "batch/v1/Job":
	default:
		return false, nil
	}
	between := &metav1.PartialObjectMetadata{}
	between.APIVersion, between.Kind = controller.APIVersion, controller.Kind
	err := o.reader.Get(ctx, types.NamespacedName{Namespace: o.namespace, Name: controller.Name}, between)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	above := metav1.GetControllerOf(between)
	owned := err == nil && between.UID == controller.UID && above != nil && above.UID == o.root
	o.known[controller.UID] = owned
	return owned, nil
}

// missing reports whether an error says that a target is not there, nor its kind.
func missing(err error) bool {
	return apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

func kindOf(object client.Object) string {
	switch object.(type) {
	case *appsv1.Deployment:
		return "Deployment"
	case *appsv1.DaemonSet:
		return "DaemonSet"
	case *appsv1.StatefulSet:
		return "StatefulSet"
	case *appsv1.ReplicaSet:
		return "ReplicaSet"
	case *batchv1.Job:
		return "Job"
	case *batchv1.CronJob:
		return "CronJob"
	case *corev1.Pod:
		return "Pod"
	}
	return object.GetObjectKind().GroupVersionKind().Kind
}
