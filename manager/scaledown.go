package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// ScaleDown stops the managers of an installation before it is unregistered: it
// scales Deployments in the manager's own namespace (Options.WebhookNamespace) to
// zero, and returns when their Pods are gone, because a Pod that drains still repairs
// and grants. Give ctx a deadline; if it ends first, the error names the Pods that are
// left. Missing Deployments are skipped.
//
// It needs the rights to get these Deployments and to patch their scale, both by name,
// and to list Pods there.
func (m *Manager) ScaleDown(ctx context.Context, deployments ...string) error {
	if err := m.reach(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	var stopping []string
	for _, name := range deployments {
		found, err := m.scaleToZero(ctx, name)
		if err != nil {
			return fmt.Errorf("manager: scaling down %w", err)
		}
		if found {
			stopping = append(stopping, name)
		}
	}
	if err := m.awaitGone(ctx, stopping); err != nil {
		return fmt.Errorf("manager: scaling down %w", err)
	}
	return nil
}

// MissingDeployments returns those of the Deployments that do not exist in the manager's
// own namespace. A name that is wrong would leave a manager running. It needs the right
// to get them, by name.
func (m *Manager) MissingDeployments(ctx context.Context, deployments ...string) (missing []string, err error) {
	if err := m.reach(ctx); err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	for _, name := range deployments {
		_, err := m.clients.Apps.Deployments(m.options.WebhookNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			missing = append(missing, m.options.WebhookNamespace+"/"+name)
		} else if err != nil {
			return nil, fmt.Errorf("manager: Deployment %s/%s: %w", m.options.WebhookNamespace, name, err)
		}
	}
	return missing, nil
}

func (m *Manager) scaleToZero(ctx context.Context, name string) (found bool, err error) {
	object := m.options.WebhookNamespace + "/" + name
	// Not by the typed client, which expects a Deployment in response: this is a Scale.
	err = m.clients.Apps.RESTClient().Patch(types.MergePatchType).
		Namespace(m.options.WebhookNamespace).Resource("deployments").Name(name).SubResource("scale").
		Body([]byte(`{"spec":{"replicas":0}}`)).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		m.options.Logger.Infow("no such Deployment to scale down", "name", object)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("Deployment %s: %w", object, err)
	}
	m.options.Logger.Infow("scaled down", "kind", "Deployment", "name", object)
	return true, nil
}

// scaleDownInterval is how often the remaining Pods are listed.
const scaleDownInterval = 250 * time.Millisecond

// awaitGone waits until Deployments have no Pods. Its error says what it last saw.
func (m *Manager) awaitGone(ctx context.Context, deployments []string) error {
	var failure error
	var before []string
	err := wait.PollUntilContextCancel(ctx, scaleDownInterval, true, func(ctx context.Context) (bool, error) {
		var left []string
		var errs []error
		for _, name := range deployments {
			pods, err := m.podsOf(ctx, name)
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
			m.options.Logger.Infow("waiting for Pods to end", "namespace", m.options.WebhookNamespace, "left", left)
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
	return fmt.Errorf("in namespace %s: %w", m.options.WebhookNamespace, err)
}

// podsOf returns what is left of a Deployment that is scaled down: its running Pods,
// or the Deployment itself while its controller has not seen the change.
func (m *Manager) podsOf(ctx context.Context, name string) ([]string, error) {
	deployment, err := m.clients.Apps.Deployments(m.options.WebhookNamespace).Get(ctx, name, metav1.GetOptions{})
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
	pods, err := m.clients.Core.Pods(m.options.WebhookNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
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
