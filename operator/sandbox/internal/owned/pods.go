package owned

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Pods are the Pods of a run, or of the seed of a Workspace, which its policy holds.
type Pods struct {
	namespace string
	// uid is that of the run or Workspace, and the value of [v1alpha1.LabelEgress].
	uid types.UID
	// key is [v1alpha1.LabelSandboxRun] or [v1alpha1.LabelWorkspace], and name its value.
	key, name string
	// job is the name of the Job, and jobUID its UID, if that is known.
	job    string
	jobUID types.UID
}

// PodsOfRun are those of a run.
func PodsOfRun(run *v1alpha1.SandboxRun) Pods {
	return Pods{run.Namespace, run.UID, v1alpha1.LabelSandboxRun, run.Name, Name(run).Name, types.UID(run.Status.JobUID)}
}

// PodsOfSeed are those of the seed of a Workspace.
func PodsOfSeed(ws *v1alpha1.Workspace) Pods {
	return Pods{ws.Namespace, ws.UID, v1alpha1.LabelWorkspace, ws.Name, WorkspaceName(ws).Name, ""}
}

// has reports whether a Pod with the label for policies is one of them. Whoever may make Pods can give that label to
// theirs, and would hold up the end of the run: so the Job that controls the Pod counts. If nothing controls it, since
// somebody deleted the Job and left its Pods, the label counts that admission keeps others from.
func (p *Pods) has(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return pod.Labels[p.key] == p.name
	}
	return owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String() && owner.Name == p.job && (p.jobUID == "" || p.jobUID == owner.UID)
}

// Each asks the API server for all of them, until do has seen enough.
func (p *Pods) Each(ctx context.Context, reader client.Reader, do func(*corev1.Pod) (enough bool)) error {
	var pods corev1.PodList
	for more := true; more; more = pods.Continue != "" {
		err := reader.List(ctx, &pods, client.InNamespace(p.namespace), client.MatchingLabels{v1alpha1.LabelEgress: string(p.uid)}, client.Limit(PageSize), client.Continue(pods.Continue))
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

// One asks the API server for one of them, "" for none. running asks for one that has not ended.
func (p *Pods) One(ctx context.Context, reader client.Reader, running bool) (name string, err error) {
	err = p.Each(ctx, reader, func(pod *corev1.Pod) bool {
		if HasEnded(pod) && running {
			return false
		}
		name = pod.Name
		return true
	})
	return name, err
}

// HasEnded reports whether no container of a Pod runs, or will.
func HasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// IsOrphan reports whether nothing controls a Pod of a run or a seed: somebody deleted its Job, as by
// kubectl delete --cascade=orphan, and left the Pod, which keeps its credentials and its volume.
func IsOrphan(pod *corev1.Pod) bool { return metav1.GetControllerOf(pod) == nil }

// PageSize bounds a page of what is listed.
const PageSize = 500
