package sandbox

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// podsOf are the Pods of a run, or of the seed of a Workspace, which its policy holds.
type podsOf struct {
	namespace string
	// uid is that of the run or Workspace, and the value of [v1alpha1.LabelEgress].
	uid types.UID
	// key is [LabelRun] or [LabelWorkspace], and name its value.
	key, name string
	// job is the name of the Job, and jobUID its UID, if that is known.
	job    string
	jobUID types.UID
}

func podsOfRun(run *v1alpha1.SandboxRun) podsOf {
	return podsOf{run.Namespace, run.UID, LabelRun, run.Name, nameOf(run).Name, types.UID(run.Status.JobUID)}
}

func podsOfSeed(ws *v1alpha1.Workspace) podsOf {
	return podsOf{ws.Namespace, ws.UID, LabelWorkspace, ws.Name, workspaceName(ws).Name, ""}
}

// has reports whether a Pod with the label for policies is one of them. Whoever may make Pods can give that label to
// theirs, and would hold up the end of the run: so the Job that controls the Pod counts. If nothing controls it, since
// somebody deleted the Job and left its Pods, the label counts that admission keeps others from.
func (p *podsOf) has(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return pod.Labels[p.key] == p.name
	}
	return owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String() && owner.Name == p.job && (p.jobUID == "" || p.jobUID == owner.UID)
}

// each asks the API server for all of them, until do has seen enough.
func (p *podsOf) each(ctx context.Context, reader client.Reader, do func(*corev1.Pod) (enough bool)) error {
	var pods corev1.PodList
	for more := true; more; more = pods.Continue != "" {
		err := reader.List(ctx, &pods, client.InNamespace(p.namespace), client.MatchingLabels{v1alpha1.LabelEgress: string(p.uid)}, client.Limit(pageSize), client.Continue(pods.Continue))
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if p.has(&pods.Items[i]) && do(&pods.Items[i]) {
				return nil
			}
		}
	}
	return nil
}

// one asks the API server for one of them, "" for none. running asks for one that has not ended.
func (p *podsOf) one(ctx context.Context, reader client.Reader, running bool) (name string, err error) {
	err = p.each(ctx, reader, func(pod *corev1.Pod) bool {
		if hasEnded(pod) && running {
			return false
		}
		name = pod.Name
		return true
	})
	return name, err
}

// hasEnded reports whether no container of a Pod runs, or will.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// isOrphan reports whether nothing controls a Pod of a run or a seed: somebody deleted its Job, as by
// kubectl delete --cascade=orphan, and left the Pod, which keeps its credentials and its volume.
func isOrphan(pod *corev1.Pod) bool { return metav1.GetControllerOf(pod) == nil }

// clear deletes the orphans, and tells of each. left is a Pod that has not ended, and is not of the Job with the UID
// current; "" for none.
func (r *runs) clear(ctx context.Context, pods podsOf, current types.UID, tell func(*corev1.Pod)) (left string, err error) {
	var orphans []*corev1.Pod
	err = pods.each(ctx, r.live, func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOf(pod)
		if owner == nil {
			orphans = append(orphans, pod.DeepCopy())
		}
		if !hasEnded(pod) && (owner == nil || owner.UID != current) {
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

// holdsUID reports whether a run or a Workspace of a namespace has this UID.
func (s *shared) holdsUID(ctx context.Context, namespace, uid string) (bool, error) {
	for _, kind := range []string{"SandboxRunList", "WorkspaceList"} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		for more := true; more; more = list.Continue != "" {
			if err := s.asker.List(ctx, &list, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(list.Continue)); err != nil {
				return false, err
			}
			for i := range list.Items {
				if string(list.Items[i].UID) == uid {
					return true, nil
				}
			}
		}
	}
	return false, nil
}
