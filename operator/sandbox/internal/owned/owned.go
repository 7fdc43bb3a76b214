package owned

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

const (
	// ManagedBy is the value of [v1alpha1.LabelManagedBy].
	ManagedBy = "admitkit-sandbox"
	// PrefixRun begins the names of what belongs to a run.
	PrefixRun = "sandbox-"
	// PrefixWorkspace begins the names of what belongs to a Workspace.
	PrefixWorkspace = "workspace-"
)

// Name is the name of all that belongs to a run.
func Name(run *v1alpha1.SandboxRun) types.NamespacedName {
	return types.NamespacedName{Namespace: run.Namespace, Name: PrefixRun + run.Name}
}

// Meta is the metadata of what belongs to a run.
func Meta(run *v1alpha1.SandboxRun) metav1.ObjectMeta {
	of := Name(run)
	return metav1.ObjectMeta{
		Namespace: of.Namespace, Name: of.Name, OwnerReferences: []metav1.OwnerReference{ByRun(run)},
		Labels: map[string]string{v1alpha1.LabelManagedBy: ManagedBy, v1alpha1.LabelSandboxRun: run.Name},
	}
}

// ByRun is how what belongs to a run refers to it.
func ByRun(run *v1alpha1.SandboxRun) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SandboxRun", Name: run.Name, UID: run.UID, Controller: new(true)}
}

// WorkspaceName is the name of all that belongs to a Workspace.
func WorkspaceName(ws *v1alpha1.Workspace) types.NamespacedName {
	return types.NamespacedName{Namespace: ws.Namespace, Name: PrefixWorkspace + ws.Name}
}

// WorkspaceMeta is the metadata of what belongs to a Workspace.
func WorkspaceMeta(ws *v1alpha1.Workspace) metav1.ObjectMeta {
	of := WorkspaceName(ws)
	return metav1.ObjectMeta{
		Namespace: of.Namespace, Name: of.Name,
		Labels: map[string]string{v1alpha1.LabelManagedBy: ManagedBy, v1alpha1.LabelWorkspace: ws.Name},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Workspace", Name: ws.Name, UID: ws.UID, Controller: new(true),
		}},
	}
}

// Is reports whether the controller of an object is this one, by kind and UID. Whoever may make such an object can
// have it say so: what counts of the object must be compared, too.
func Is(object metav1.Object, owner metav1.OwnerReference) bool {
	c := metav1.GetControllerOf(object)
	if c == nil || c.UID != owner.UID || c.Kind != owner.Kind || c.Name != owner.Name {
		return false
	}
	is, err := schema.ParseGroupVersion(c.APIVersion)
	want, _ := schema.ParseGroupVersion(owner.APIVersion) // it is one of ours
	return err == nil && is.Group == want.Group
}

// ByJob is the reference of the Pods of a Job to it.
func ByJob(job *batchv1.Job) metav1.OwnerReference {
	return *metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))
}

// IsOurs reports whether an object has our label. Who gives it to an object of their own gains nothing.
func IsOurs(object client.Object) bool {
	return object.GetLabels()[v1alpha1.LabelManagedBy] == ManagedBy
}

// HasFinalizer reports whether a run has our finalizer.
func HasFinalizer(run *v1alpha1.SandboxRun) bool {
	return slices.Contains(run.Finalizers, v1alpha1.FinalizerSandboxRun)
}

// IsFinished reports whether a Job has no Pods any more, and will have none.
func IsFinished(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return true
		}
	}
	return false
}

// HolderUID is the UID of the run that has a Workspace, "" for none.
func HolderUID(ws *v1alpha1.Workspace) string {
	if ws.Status.ActiveRun == nil {
		return ""
	}
	return ws.Status.ActiveRun.UID
}

// TakenError says that an object of somebody else has the name of ours.
type TakenError struct{ Kind, Name string }

func (e *TakenError) Error() string {
	return fmt.Sprintf("%s %s is not the run's: it stays untouched; delete it, or make a run of another name", e.Kind, e.Name)
}
