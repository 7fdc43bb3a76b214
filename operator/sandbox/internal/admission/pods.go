package admission

import (
	"context"
	"fmt"
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// podGuard keeps the labels of Pods of runs: by them their policy selects them, and by another label a
// policy of somebody else could. It keeps them from other Pods, too.
type podGuard struct{ admitted }

// podScope covers the requests that change the labels of such a Pod. They can come with a status, too.
func (g *gate) podScope() extension.Scope {
	labels := func(object string) string {
		return fmt.Sprintf("(has(%[1]s.metadata.labels) ? %[1]s.metadata.labels : {})", object)
	}
	update := admissionregistrationv1.Update
	return scope("sandbox-pod", g.selector(), extension.Resources("", "v1", []string{"pods", "pods/status"}, update), admissionregistrationv1.MatchCondition{
		Name: "labels-of-a-run", Expression: fmt.Sprintf("%[4]s != %[5]s && ['%[1]s', '%[2]s'].exists(l, l in %[4]s || l in %[5]s) || '%[3]s' in %[5]s && (!('%[3]s' in %[4]s) || %[4]s['%[3]s'] != %[5]s['%[3]s'])",
			v1alpha1.LabelSandboxRun, v1alpha1.LabelWorkspace, v1alpha1.LabelEgress, labels("oldObject"), labels("object")),
	})
}

// Validate denies every change but those of Kubernetes, which writes where a Pod is.
func (g *podGuard) Validate(ctx context.Context, pod *metav1.PartialObjectMetadata, req *extension.Request) error {
	old, err := extension.Old[*metav1.PartialObjectMetadata](req)
	if err != nil {
		return err
	}
	if maps.Equal(withoutTopology(old.Labels), withoutTopology(pod.Labels)) {
		return nil
	}
	if old.Labels[v1alpha1.LabelSandboxRun] == "" && old.Labels[v1alpha1.LabelWorkspace] == "" {
		return g.refuseLabels(ctx, pod.Labels, req)
	}
	return denied("Pod", "metadata.labels: Pod %s belongs to a SandboxRun, and a network policy holds it by its labels: nobody can change them", pod.Name)
}

// refuseLabels refuses a Pod that has the labels of those of a run or a seed, and is of none. [v1alpha1.LabelEgress] alone is
// that of access Pods, too.
func (g *gate) refuseLabels(ctx context.Context, labels map[string]string, req *extension.Request) error {
	for _, key := range []string{v1alpha1.LabelSandboxRun, v1alpha1.LabelWorkspace} {
		if _, forged := labels[key]; forged {
			return denied("Pod", "metadata.labels: only Pods of SandboxRuns and Workspaces have the label %s: leave it out", key)
		}
	}
	uid, labelled := labels[v1alpha1.LabelEgress]
	if !labelled {
		return nil
	}
	ours, err := g.holdsUID(ctx, req.Namespace, uid)
	if err == nil && ours {
		err = denied("Pod", "metadata.labels: %s: %q is of a SandboxRun or a Workspace, and the Pod is not: leave it out", v1alpha1.LabelEgress, uid)
	}
	return err
}

// graceGuard refuses deletions that give a Pod of a run or a seed longer than its own grace period: it would go on, with
// its credentials, after the run has ended.
type graceGuard struct{ admitted }

// Validate denies what lets such a Pod go on.
func (g *graceGuard) Validate(ctx context.Context, object *unstructured.Unstructured, req *extension.Request) error {
	pod, err := cluster.Lengthened(ctx, g.asker, object, req)
	if err != nil || pod == nil || !isOfOurs(pod) {
		return err
	}
	return denied("Pod", "Pod %s/%s belongs to a SandboxRun or a Workspace, and ends within %d s of its deletion: leave out gracePeriodSeconds (kubectl: --grace-period)",
		pod.Namespace, pod.Name, *pod.Spec.TerminationGracePeriodSeconds)
}

func withoutTopology(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return egress.IsOfTopology(key) })
	return labels
}

// holdsUID reports whether a run or a Workspace of a namespace has this UID.
func (g *gate) holdsUID(ctx context.Context, namespace, uid string) (bool, error) {
	for _, kind := range []string{"SandboxRunList", "WorkspaceList"} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		for more := true; more; more = list.Continue != "" {
			if err := g.asker.List(ctx, &list, client.InNamespace(namespace), client.Limit(owned.PageSize), client.Continue(list.Continue)); err != nil {
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
