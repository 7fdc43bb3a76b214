package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNoPod is the error of Choose when the workload has no Pod to choose for now.
var ErrNoPod = errors.New("no Pod")

// UnknownPodError says that a Pod that was asked for by name does not exist, or is
// not one of the workload's.
type UnknownPodError string

func (e UnknownPodError) Error() string { return string(e) }

// Ready reports whether a Pod runs, is ready, and is not going away.
func Ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// Choose returns a ready Pod of the workload: the named one, or any if name is "".
// The error is [ErrNoPod] when none is ready, and an [UnknownPodError] when the
// named one is not the workload's.
func (w *Workload) Choose(ctx context.Context, reader client.Reader, name string) (*corev1.Pod, error) {
	if pod, ok := w.object.(*corev1.Pod); ok && name == "" {
		name = pod.Name
	}
	if name == "" {
		return w.any(ctx, reader)
	}
	pod, err := w.Owned(ctx, reader, name)
	if err != nil {
		return nil, err
	}
	if !Ready(pod) {
		return nil, fmt.Errorf("%w: Pod %s/%s is not ready, or is going away", ErrNoPod, pod.Namespace, pod.Name)
	}
	return pod, nil
}

// any returns one of the ready Pods, at random to spread the load.
func (w *Workload) any(ctx context.Context, reader client.Reader) (*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(w.Selector)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(w.object.GetNamespace()), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	owners := w.owners(reader)
	for _, i := range rand.Perm(len(pods.Items)) { //nolint:gosec // it spreads load, and is no secret
		pod := &pods.Items[i]
		if !Ready(pod) {
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
	return nil, fmt.Errorf("%w of %s %s/%s is ready", ErrNoPod, w.kind, w.object.GetNamespace(), w.object.GetName())
}

// Owned returns the named Pod if it is the workload's, by the selector and by its
// chain of owners. Otherwise the error is an [UnknownPodError].
func (w *Workload) Owned(ctx context.Context, reader client.Reader, name string) (*corev1.Pod, error) {
	namespace := w.object.GetNamespace()
	var pod corev1.Pod
	if err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pod); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, UnknownPodError(fmt.Sprintf("Pod %s/%s does not exist", namespace, name))
		}
		return nil, err
	}
	owned, err := w.owners(reader).owns(ctx, &pod)
	if err != nil {
		return nil, err
	}
	if !owned || !w.Selects(pod.Labels) {
		return nil, UnknownPodError(fmt.Sprintf("Pod %s/%s is not one of %s %q", namespace, name, w.kind, w.object.GetName()))
	}
	return &pod, nil
}

// Selects reports whether the workload's selector matches a Pod's labels; a plain
// Pod has none, and selects all.
func (w *Workload) Selects(pod map[string]string) bool {
	if w.Selector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Selector)
	return err == nil && selector.Matches(labels.Set(pod))
}

// owners finds out whether Pods belong to a workload, by their controllers and
// the controllers of these. A label proves nothing: users who may create a Pod
// choose its labels.
type owners struct {
	reader    client.Reader
	namespace string
	root      types.UID
	known     map[types.UID]bool
}

func (w *Workload) owners(reader client.Reader) *owners {
	return &owners{reader: reader, namespace: w.object.GetNamespace(), root: w.object.GetUID(), known: map[types.UID]bool{}}
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
