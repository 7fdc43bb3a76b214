package broker

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// run is what the broker knows of a HarnessRun.
type run struct {
	v1alpha1.LeaseRun
	template string
	// jobUID is that of its Job, once it has one.
	jobUID string
	// finished says that it does nothing any more, and ended that it has finished or is about
	// to be deleted.
	finished, ended bool
}

// runs reads runs from the API server.
type runs struct{ live client.Reader }

var (
	harnessRunKind = v1alpha1.GroupVersion.WithKind("HarnessRun")
	runResource    = schema.GroupResource{Group: harnessRunKind.Group, Resource: "harnessruns"}
)

func newHarnessRun() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(harnessRunKind)
	return object
}

// get returns a run. The error is NotFound of apierrors if there is none.
func (r runs) get(ctx context.Context, namespace, name string) (*run, error) {
	object := newHarnessRun()
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		return nil, fmt.Errorf("reading HarnessRun %s/%s: %w", namespace, name, err)
	}
	return runOf(object), nil
}

// runOf reads of an object what the broker needs.
func runOf(object *unstructured.Unstructured) *run {
	template, _, _ := unstructured.NestedString(object.Object, "spec", "templateRef", "name")
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	jobUID, _, _ := unstructured.NestedString(object.Object, "status", "jobUID")
	finished := phase == "Succeeded" || phase == "Failed" || phase == "Cancelled"
	return &run{
		LeaseRun: v1alpha1.LeaseRun{Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID()},
		template: template, jobUID: jobUID, finished: finished, ended: finished || object.GetDeletionTimestamp() != nil,
	}
}

// trimRun leaves of a run what runOf reads.
func trimRun(object any) (any, error) {
	full, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	trimmed := newHarnessRun()
	trimmed.SetNamespace(full.GetNamespace())
	trimmed.SetName(full.GetName())
	trimmed.SetUID(full.GetUID())
	trimmed.SetResourceVersion(full.GetResourceVersion())
	trimmed.SetDeletionTimestamp(full.GetDeletionTimestamp())
	for _, path := range [][]string{{"spec", "templateRef", "name"}, {"status", "phase"}} {
		if text, found, _ := unstructured.NestedString(full.Object, path...); found {
			if err := unstructured.SetNestedField(trimmed.Object, text, path...); err != nil {
				return nil, err
			}
		}
	}
	return trimmed, nil
}

// ofPod returns the run of a Pod: that which controls the Job which controls the Pod, each
// by its UID. A Pod that merely has the labels of a run is of none.
func (r runs) ofPod(ctx context.Context, pod *corev1.Pod) (*run, error) {
	none := apierrors.NewNotFound(runResource, "of Pod "+pod.Name)
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "Job" || owner.APIVersion != batchv1.SchemeGroupVersion.String() {
		return nil, none
	}
	job := &batchv1.Job{}
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, job); err != nil {
		return nil, fmt.Errorf("reading Job %s/%s: %w", pod.Namespace, owner.Name, err)
	}
	above := metav1.GetControllerOf(job)
	if job.UID != owner.UID || above == nil || above.Kind != harnessRunKind.Kind || above.APIVersion != v1alpha1.GroupVersion.String() {
		return nil, none
	}
	found, err := r.get(ctx, pod.Namespace, above.Name)
	if err == nil && (found.UID != above.UID || found.jobUID != "" && found.jobUID != string(job.UID)) {
		return nil, none // another run had the name, or the Job is not the run's own
	}
	return found, err
}

// hasEnded reports whether a run of this UID does nothing any more, or is gone.
func (r runs) hasEnded(ctx context.Context, of v1alpha1.LeaseRun) (bool, error) {
	found, err := r.get(ctx, of.Namespace, of.Name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && (found.ended || found.UID != of.UID), err
}
