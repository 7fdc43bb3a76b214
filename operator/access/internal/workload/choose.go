package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// runs reports whether there are processes in a Pod that is not going away. One that is
// not ready is what an incident is about.
func runs(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning
}

// Choose returns a Pod of the workload that runs: the named one, or any if name is "", one
// that is ready rather than another. The error is [ErrNoPod] when none runs, and an
// [UnknownPodError] when the named one is not the workload's.
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
	if !runs(pod) {
		return nil, fmt.Errorf("%w: Pod %s/%s does not run, or is going away", ErrNoPod, pod.Namespace, pod.Name)
	}
	return pod, nil
}

// any returns one of the Pods that run, at random to spread the load, and one that is
// ready if there is one.
func (w *Workload) any(ctx context.Context, reader client.Reader) (*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(w.Selector)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(w.object.GetNamespace()), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	owners, order := w.owners(reader), rand.Perm(len(pods.Items)) //nolint:gosec // it spreads load, and is no secret
	for _, fits := range []func(*corev1.Pod) bool{Ready, runs} {
		for _, i := range order {
			pod := &pods.Items[i]
			if !fits(pod) {
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
	}
	return nil, fmt.Errorf("%w of %s %s/%s runs", ErrNoPod, w.ref.Kind, w.object.GetNamespace(), w.object.GetName())
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
	if _, itself := w.object.(*corev1.Pod); !owned || !itself && !w.Selects(pod.Labels) {
		return nil, UnknownPodError(fmt.Sprintf("Pod %s/%s is not one of %s: its labels and owners must lead there, and its name must begin with that of its owner", namespace, name, w.ref))
	}
	return &pod, nil
}

// Selects reports whether the workload's selector matches a Pod's labels. A plain Pod
// has no selector.
func (w *Workload) Selects(pod map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(w.Selector)
	return err == nil && selector.Matches(labels.Set(pod))
}

// owners finds out whether Pods belong to a workload, by their controllers and the
// controllers of these, as they are in the cluster. Users who may write a Pod choose
// its labels and owners. So the chain must be one that Kubernetes' own controllers
// make, and the name of a Pod, which nobody can change, must be of their making.
type owners struct {
	reader client.Reader
	*Workload
	known map[owner]bool
}

// owner is a controller, of a kind that is known.
type owner struct {
	name string
	uid  types.UID
}

func (w *Workload) owners(reader client.Reader) *owners {
	return &owners{reader: reader, Workload: w, known: map[owner]bool{}}
}

// between is what lies between Pods and the workloads that do not make them
// themselves.
var between = map[string]schema.GroupVersionKind{
	"Deployment": appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	"Rollout":    appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	"CronJob":    batchv1.SchemeGroupVersion.WithKind("Job"),
}

func (o *owners) owns(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if o.ref.Kind == "Pod" {
		return pod.UID == o.object.GetUID(), nil
	}
	controller := metav1.GetControllerOf(pod)
	if controller == nil || !named(pod.Name, controller.Name) {
		return false, nil
	}
	kind, indirect := between[o.ref.Kind]
	if !indirect {
		return o.is(controller), nil
	}
	if apiVersion, kind := kind.ToAPIVersionAndKind(); controller.APIVersion != apiVersion || controller.Kind != kind {
		return false, nil
	}
	key := owner{controller.Name, controller.UID}
	owned, known := o.known[key]
	if !known {
		var err error
		if owned, err = o.ownsController(ctx, controller); err != nil {
			return false, err
		}
		o.known[key] = owned
	}
	return owned, nil
}

// ownsController reports whether what controls a Pod exists and is the workload's.
func (o *owners) ownsController(ctx context.Context, controller *metav1.OwnerReference) (bool, error) {
	found := &metav1.PartialObjectMetadata{}
	found.APIVersion, found.Kind = controller.APIVersion, controller.Kind
	err := o.reader.Get(ctx, types.NamespacedName{Namespace: o.object.GetNamespace(), Name: controller.Name}, found)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return found.UID == controller.UID && o.is(metav1.GetControllerOf(found)), nil
}

// is reports whether a reference is to the workload.
func (o *owners) is(ref *metav1.OwnerReference) bool {
	return ref != nil && ref.APIVersion == o.ref.APIVersion && ref.Kind == o.ref.Kind && ref.Name == o.ref.Name && ref.UID == o.object.GetUID()
}

// longestBase is how much of its controller's name the name of a Pod has at least:
// Kubernetes cuts it to 58 characters to append a random suffix, and to less if the
// index in an indexed Job comes before that.
const longestBase = 48

// named reports whether a Pod has a name as its controller makes them.
func named(pod, controller string) bool {
	base := controller + "-"
	return strings.HasPrefix(pod, base[:min(len(base), longestBase)])
}
