// Package scaledown stops the Deployments of an installation, and waits until none of their
// Pods is left: one that drains would still repair what is removed next. [Deployments] has
// a method for each of the two steps.
package scaledown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Deployments are those of an installation, in one namespace.
type Deployments struct {
	Apps      appsv1client.AppsV1Interface
	Core      corev1client.CoreV1Interface
	Namespace string
	Log       *zap.SugaredLogger
}

// ToZero scales a Deployment to zero. found is false if it does not exist.
func (d *Deployments) ToZero(ctx context.Context, name string) (found bool, err error) {
	object := d.Namespace + "/" + name
	// Not by the typed client, which expects a Deployment in response: this is a Scale.
	err = d.Apps.RESTClient().Patch(types.MergePatchType).
		Namespace(d.Namespace).Resource("deployments").Name(name).SubResource("scale").
		Body([]byte(`{"spec":{"replicas":0}}`)).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		d.Log.Infow("no such Deployment to scale down", "name", object)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("Deployment %s: %w", object, err)
	}
	d.Log.Infow("scaled down", "kind", "Deployment", "name", object)
	return true, nil
}

// interval is how often the remaining Pods are listed.
const interval = 250 * time.Millisecond

// AwaitGone waits until Deployments have no Pods. Its error says what it last saw.
func (d *Deployments) AwaitGone(ctx context.Context, deployments []string) error {
	var failure error
	var before []string
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		var left []string
		var errs []error
		for _, name := range deployments {
			pods, err := d.podsOf(ctx, name)
			left, errs = append(left, pods...), append(errs, err)
		}
		err := errors.Join(errs...)
		if apierrors.IsForbidden(err) {
			return false, err
		}
		if ctx.Err() == nil {
			failure = err // otherwise the failure before says more
		}
		if err == nil && !slices.Equal(left, before) {
			d.Log.Infow("waiting for Pods to end", "namespace", d.Namespace, "left", left)
			before = left
		}
		return err == nil && len(left) == 0, nil
	})
	if err == nil || ctx.Err() == nil {
		return err
	}
	if len(before) > 0 {
		err = fmt.Errorf("%w: left: %s", err, strings.Join(before, ", "))
	}
	if failure != nil {
		err = fmt.Errorf("%w: %w", err, failure)
	}
	return fmt.Errorf("in namespace %s: %w", d.Namespace, err)
}

// podsOf returns what is left of a Deployment that is scaled down: its running Pods,
// or the Deployment itself while its controller has not seen the change.
func (d *Deployments) podsOf(ctx context.Context, name string) ([]string, error) {
	deployment, err := d.Apps.Deployments(d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return nil, err
	}
	pods, err := d.Core.Pods(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	var left []string
	for i := range pods.Items {
		if pod := &pods.Items[i]; replica(pod) {
			left = append(left, "Pod "+pod.Name)
		}
	}
	// A controller that has never seen the Deployment will create nothing.
	if seen := deployment.Status.ObservedGeneration; len(left) == 0 && seen > 0 && (seen < deployment.Generation || deployment.Status.Replicas > 0) {
		left = append(left, "Deployment "+name)
	}
	return left, nil
}

// replica reports whether a Pod belongs to a Deployment and may still run. A Job that
// runs `unregister` may have the labels of the whole installation, and must not wait
// for itself.
func replica(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "ReplicaSet" && owner.APIVersion == appsv1.SchemeGroupVersion.String() &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
