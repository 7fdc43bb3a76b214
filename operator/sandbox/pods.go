package sandbox

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// clear deletes the orphans, and tells of each. left is a Pod that has not ended, and is not of the Job with the UID
// current; "" for none.
func (r *runs) clear(ctx context.Context, pods owned.Pods, current types.UID, tell func(*corev1.Pod)) (left string, err error) {
	var orphans []*corev1.Pod
	err = pods.Each(ctx, r.live, func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOf(pod)
		if owner == nil {
			orphans = append(orphans, pod.DeepCopy())
		}
		if !owned.HasEnded(pod) && (owner == nil || owner.UID != current) {
			left = pod.Name
		}
		return false
	})
	if err == nil {
		err = r.deleteOrphans(ctx, orphans, tell)
	}
	return left, err
}

func (r *runs) deleteOrphans(ctx context.Context, orphans []*corev1.Pod, tell func(*corev1.Pod)) error {
	for _, pod := range orphans {
		if cluster.Ends(pod) {
			continue
		}
		switch err := r.writer.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}, &client.DeleteOptions{GracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds}); {
		case err == nil:
			tell(pod)
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("deleting Pod %s/%s, whose Job is gone: %w", pod.Namespace, pod.Name, err)
		}
	}
	return nil
}

// orphaned is what the record of an orphan says.
func orphaned(pod *corev1.Pod) string {
	return fmt.Sprintf("somebody deleted the Job of Pod %s and left the Pod: it is deleted, since it keeps its credentials and its volume", pod.Name)
}
