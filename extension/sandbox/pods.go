package sandbox

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
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

func podsOfRun(run *v1alpha1.HarnessRun) podsOf {
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

// one asks the API server for one of them, "" for none. running asks for one that has not ended.
func (p *podsOf) one(ctx context.Context, reader client.Reader, running bool) (string, error) {
	var pods corev1.PodList
	for more := true; more; more = pods.Continue != "" {
		err := reader.List(ctx, &pods, client.InNamespace(p.namespace), client.MatchingLabels{v1alpha1.LabelEgress: string(p.uid)}, client.Limit(pageSize), client.Continue(pods.Continue))
		if err != nil {
			return "", err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			runs := pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
			if p.has(pod) && (runs || !running) {
				return pod.Name, nil
			}
		}
	}
	return "", nil
}

// holdsUID reports whether a run or a Workspace of a namespace has this UID.
func (s *shared) holdsUID(ctx context.Context, namespace, uid string) (bool, error) {
	for _, kind := range []string{"HarnessRunList", "WorkspaceList"} {
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
