package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrPutOff is in the error of [Evict] while a PodDisruptionBudget allows no
// eviction. Try again later.
var ErrPutOff = errors.New("a PodDisruptionBudget puts off the eviction")

// Evict evicts the Pod with this UID and, if the resource version is set, in this
// version: never another one that has its name by now. Errors are those of the API
// server, or wrap [ErrPutOff]: apierrors.IsNotFound if the Pod is gone,
// apierrors.IsConflict if it is another one or has changed. With the grace period in the
// spec of pod, one that somebody has deleted with a longer one ends with that. It needs
// the right to create pods/eviction.
func Evict(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	preconditions := &metav1.Preconditions{UID: &pod.UID}
	if pod.ResourceVersion != "" {
		preconditions.ResourceVersion = &pod.ResourceVersion
	}
	eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: preconditions, GracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds}}
	err := c.SubResource("eviction").Create(ctx, pod, eviction)
	switch {
	case err == nil:
		return nil
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("evicting Pod %s/%s: %w: %w", pod.Namespace, pod.Name, ErrPutOff, err)
	}
	return fmt.Errorf("evicting Pod %s/%s: %w", pod.Namespace, pod.Name, err)
}
