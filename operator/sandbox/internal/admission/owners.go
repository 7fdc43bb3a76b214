package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// The broker gives credentials to a Pod whose controller is a Job whose controller is a SandboxRun. Whoever may write
// Pods or Jobs could claim that of their own: podOwnerGuard and jobOwnerGuard refuse it.

// jobControllers are the users as which the controller of Jobs makes Pods: with credentials of its own, as clusters
// have it, or with those of all controllers.
var jobControllers = []string{"system:serviceaccount:kube-system:job-controller", "system:kube-controller-manager"}

// podOwnerGuard refuses Pods that claim to be of a run, and changes of those that are.
type podOwnerGuard struct{ admitted }

// jobOwnerGuard refuses Jobs that claim to be of a run.
type jobOwnerGuard struct{ admitted }

// ownerScopes cover what claims to be of a run.
func (g *gate) ownerScopes() (pods, jobs extension.Scope) {
	create, update := admissionregistrationv1.Create, admissionregistrationv1.Update
	labelled := "(has(%[1]s.labels) && ['" + strings.Join(ourLabels, "', '") + "'].exists(l, l in %[1]s.labels))"
	byOwner := "(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, %s))"
	pods = scope("sandbox-pod-forgery", g.selector(),
		append(extension.Resources("", "v1", []string{"pods"}, create, update), extension.Resources("", "v1", []string{"pods/ephemeralcontainers", "pods/resize"}, update)...),
		admissionregistrationv1.MatchCondition{Name: "of-a-run", Expression: fmt.Sprintf(labelled, "object.metadata") + " || " +
			fmt.Sprintf(byOwner, fmt.Sprintf("o.kind == 'Job' && (o.name.startsWith('%s') || o.name.startsWith('%s'))", owned.PrefixRun, owned.PrefixWorkspace))})
	// The API server lets an update of the status of a Job change its owners, and the controller of Jobs makes many that do not.
	owners := "(has(%[1]s.metadata.ownerReferences) ? %[1]s.metadata.ownerReferences : [])"
	jobs = scope("sandbox-job-forgery", g.selector(),
		append(extension.Resources(batchv1.GroupName, "v1", []string{"jobs"}, create, update), extension.Resources(batchv1.GroupName, "v1", []string{"jobs/status"}, update)...),
		admissionregistrationv1.MatchCondition{Name: "changes-more-than-a-status", Expression: "!has(request.subResource) || request.subResource != 'status' || " +
			fmt.Sprintf(owners, "object") + " != " + fmt.Sprintf(owners, "oldObject")},
		admissionregistrationv1.MatchCondition{Name: "of-a-run", Expression: fmt.Sprintf(labelled, "object.spec.template.metadata") + " || " +
			fmt.Sprintf(byOwner, fmt.Sprintf("o.kind in ['SandboxRun', 'Workspace'] && o.apiVersion.startsWith('%s/')", v1alpha1.GroupVersion.Group))})
	return pods, jobs
}

// ourLabels are on the Pods of runs and seeds, and the last on access Pods, too.
var ourLabels = []string{v1alpha1.LabelSandboxRun, v1alpha1.LabelWorkspace, v1alpha1.LabelEgress}

// Validate lets the controller of Jobs make Pods, and nobody change what runs in them.
func (g *podOwnerGuard) Validate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	if req.SubResource == "ephemeralcontainers" {
		return denied("Pod", "Pod %s belongs to a SandboxRun: a container that is added to it could read what its proxy has; look at its log, or run another", pod.Name)
	}
	if req.SubResource == "resize" {
		return denied("Pod", "spec: Pod %s belongs to a SandboxRun or a Workspace: what it may use is its template's: run another", pod.Name)
	}
	if req.Operation == admissionv1.Create {
		me, err := g.asker.Reconciler(ctx)
		if err != nil || req.User().Username == me || slices.Contains(jobControllers, req.User().Username) {
			return err
		}
		if !slices.ContainsFunc(pod.OwnerReferences, isOurJob) {
			return g.refuseLabels(ctx, pod.Labels, req)
		}
		return denied("Pod", "metadata: the Pod claims to be of a SandboxRun or a Workspace, and only the controller of Jobs makes such Pods: leave out owners that are Jobs named %s* or %s*; make a SandboxRun instead", owned.PrefixRun, owned.PrefixWorkspace)
	}
	old, err := extension.Old[*corev1.Pod](req)
	if err != nil {
		return err
	}
	if added := addedOwner(old.OwnerReferences, pod.OwnerReferences); added != "" && (isOfOurs(old) || slices.ContainsFunc(pod.OwnerReferences, isOurJob)) {
		return denied("Pod", "metadata.ownerReferences: only the controller of Jobs makes Pods of SandboxRuns: leave out %s", added)
	}
	if isOfOurs(old) && !slices.Equal(imagesOf(old), imagesOf(pod)) {
		return denied("Pod", "spec: Pod %s belongs to a SandboxRun: its images cannot be changed; run another", pod.Name)
	}
	return nil
}

// isOurJob reports whether an owner is the Job of a run or a seed, by its name.
func isOurJob(owner metav1.OwnerReference) bool {
	return owner.Kind == "Job" && (strings.HasPrefix(owner.Name, owned.PrefixRun) || strings.HasPrefix(owner.Name, owned.PrefixWorkspace))
}

// isOfOurs reports whether a Pod has a label that admission keeps from others.
func isOfOurs(pod *corev1.Pod) bool {
	return pod.Labels[v1alpha1.LabelSandboxRun] != "" || pod.Labels[v1alpha1.LabelWorkspace] != ""
}

// Validate lets only the manager make Jobs of runs and seeds, and such whose Pods have the labels of these. Nobody else changes
// what they say: one that is suspended could have its next Pods get a label by which a policy of somebody else selects them.
func (g *jobOwnerGuard) Validate(ctx context.Context, job *batchv1.Job, req *extension.Request) error {
	old := &batchv1.Job{}
	if req.Operation == admissionv1.Update {
		if err := req.Old(old); err != nil {
			return err
		}
	}
	me, err := g.asker.Reconciler(ctx)
	if err != nil || req.User().Username == me {
		return err
	}
	if added := addedOwner(old.OwnerReferences, job.OwnerReferences); added != "" && slices.ContainsFunc(job.OwnerReferences, func(o metav1.OwnerReference) bool {
		return strings.HasPrefix(o.APIVersion, v1alpha1.GroupVersion.Group+"/")
	}) {
		return denied("Job", "metadata.ownerReferences: only admitkit makes Jobs of SandboxRuns and Workspaces: leave out %s; make a SandboxRun instead", added)
	}
	if isOfOurs(&corev1.Pod{ObjectMeta: old.Spec.Template.ObjectMeta}) && addedOwner(job.OwnerReferences, old.OwnerReferences) != "" {
		return denied("Job", "metadata.ownerReferences: Job %s is that of a SandboxRun or a Workspace, and ends with it: leave its owners", job.Name)
	}
	if isOfOurs(&corev1.Pod{ObjectMeta: old.Spec.Template.ObjectMeta}) && !apiequality.Semantic.DeepEqual(old.Spec, job.Spec) {
		return denied("Job", "spec: Job %s is that of a SandboxRun or a Workspace, and only admitkit changes it: cancel the run, and make another", job.Name)
	}
	for _, key := range ourLabels {
		value, has := job.Spec.Template.Labels[key]
		if before, had := old.Spec.Template.Labels[key]; has && (!had || before != value) {
			return denied("Job", "spec.template.metadata.labels: only Pods of SandboxRuns and Workspaces have the label %s: leave it out", key)
		}
	}
	return nil
}

// addedOwner names an owner that was not there before, or was another one by its kind or name, "" if there is none.
func addedOwner(before, after []metav1.OwnerReference) string {
	for _, owner := range after {
		if !slices.ContainsFunc(before, func(b metav1.OwnerReference) bool {
			return b.UID == owner.UID && b.APIVersion == owner.APIVersion && b.Kind == owner.Kind && b.Name == owner.Name && isController(b) == isController(owner)
		}) {
			return owner.Kind + " " + owner.Name
		}
	}
	return ""
}

func isController(owner metav1.OwnerReference) bool {
	return owner.Controller != nil && *owner.Controller
}

func imagesOf(pod *corev1.Pod) (images []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		images = append(images, c.Name+"="+c.Image)
	}
	return images
}
