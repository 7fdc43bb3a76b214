package broker

import (
	"cmp"
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// run is what the broker knows of a SandboxRun, or of a Workspace, whose seed is like a run.
type run struct {
	v1alpha1.LeaseRun
	// template is that of a SandboxRun.
	template string
	// jobUID is that of its Job, or of that of the seed, once it has one.
	jobUID string
	// finished says that it does nothing any more, and ended that it has finished or is about
	// to be deleted.
	finished, ended bool
}

// runs reads runs from the API server.
type runs struct{ live client.Reader }

var runResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "sandboxruns"}

// newRun is an object of one of the kinds that have leases.
func newRun(kind v1alpha1.LeaseKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(string(cmp.Or(kind, v1alpha1.LeaseOfRun)))) // of a lease that is older than its kind
	return object
}

// get returns a run. The error is NotFound of apierrors if there is none.
func (r runs) get(ctx context.Context, kind v1alpha1.LeaseKind, namespace, name string) (*run, error) {
	object := newRun(kind)
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", kind, namespace, name, err)
	}
	return runOf(object), nil
}

// runFields are what runOf reads of an object of either kind.
var runFields = [][]string{{"spec", "templateRef", "name"}, {"status", "phase"}, {"status", "jobUID"}, {"status", "seedJobUID"}}

// runOf reads of an object what the broker needs.
func runOf(object *unstructured.Unstructured) *run {
	of := func(path []string) string {
		text, _, _ := unstructured.NestedString(object.Object, path...)
		return text
	}
	template, phase, jobUID, seedUID := of(runFields[0]), of(runFields[1]), of(runFields[2]), of(runFields[3])
	kind := v1alpha1.LeaseKind(object.GetKind())
	var finished bool
	if kind == v1alpha1.LeaseOfWorkspace { // one that is being deleted has no seed any more when it has no Job
		jobUID = seedUID
		finished = phase == string(v1alpha1.WorkspaceActive) || phase == string(v1alpha1.WorkspaceFailed) || phase == string(v1alpha1.WorkspaceTerminating) && seedUID == ""
	} else {
		finished = v1alpha1.SandboxPhase(phase).Terminal()
	}
	return &run{
		LeaseRun: v1alpha1.LeaseRun{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID()},
		template: template, jobUID: jobUID, finished: finished, ended: finished || object.GetDeletionTimestamp() != nil,
	}
}

// String names a run, or what else it is.
func (r *run) String() string { return fmt.Sprintf("%s %s", r.Kind, r.Name) }

// policies returns those of its namespace that apply to it, in the order of their names, and to what they apply.
func (r *run) policies(all *v1alpha1.BrokerPolicyList) (apply []v1alpha1.BrokerPolicy, to string) {
	if r.Kind == v1alpha1.LeaseOfWorkspace {
		apply, _ = all.ForWorkspace(r.Name)
		return apply, fmt.Sprintf("Workspace %q", r.Name)
	}
	apply, _ = all.ForTemplate(r.template)
	return apply, fmt.Sprintf("template %q", r.template)
}

// trimRun leaves of a run what runOf reads.
func trimRun(object any) (any, error) {
	full, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	trimmed := newRun(v1alpha1.LeaseKind(full.GetKind()))
	trimmed.SetNamespace(full.GetNamespace())
	trimmed.SetName(full.GetName())
	trimmed.SetUID(full.GetUID())
	trimmed.SetResourceVersion(full.GetResourceVersion())
	trimmed.SetDeletionTimestamp(full.GetDeletionTimestamp())
	for _, path := range runFields {
		if text, found, _ := unstructured.NestedString(full.Object, path...); found {
			if err := unstructured.SetNestedField(trimmed.Object, text, path...); err != nil {
				return nil, err
			}
		}
	}
	return trimmed, nil
}

// ofPod returns the run of a Pod, or the Workspace that it seeds: that which controls the Job which controls the Pod, each
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
	if job.UID != owner.UID || above == nil || above.APIVersion != v1alpha1.GroupVersion.String() {
		return nil, none
	}
	kind := v1alpha1.LeaseKind(above.Kind)
	if kind != v1alpha1.LeaseOfRun && kind != v1alpha1.LeaseOfWorkspace {
		return nil, none
	}
	found, err := r.get(ctx, kind, pod.Namespace, above.Name)
	switch {
	case err != nil:
		return nil, err
	case found.UID == above.UID && found.jobUID == "":
		return nil, fmt.Errorf("the status of %s does not name its Job yet", found)
	case found.UID != above.UID || found.jobUID != string(job.UID):
		return nil, none // another run had the name, or the Job is not the run's own
	}
	return found, nil
}

// hasEnded reports whether a run of this UID does nothing any more, or is gone.
func (r runs) hasEnded(ctx context.Context, of v1alpha1.LeaseRun) (bool, error) {
	found, err := r.get(ctx, of.Kind, of.Namespace, of.Name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && (found.ended || found.UID != of.UID), err
}
