package owned

import "github.com/admitkit/admitkit/operator/api/v1alpha1"

// PodLabels are the labels of the Pods of a Job, as [egress.Widens] wants them; of is the label of what they belong
// to, [v1alpha1.LabelSandboxRun] or [v1alpha1.LabelWorkspace]: no Pod has both. An empty name stands for all. The last four are those of the
// controller of Jobs.
func PodLabels(of, name, job string) map[string]string {
	return map[string]string{
		v1alpha1.LabelManagedBy: ManagedBy, of: name,
		"batch.kubernetes.io/job-name": job, "batch.kubernetes.io/controller-uid": "", "job-name": job, "controller-uid": "",
	}
}

// PodLabelsOfRun are the labels of the Pods of a run.
func PodLabelsOfRun(run *v1alpha1.SandboxRun) map[string]string {
	labels := PodLabels(v1alpha1.LabelSandboxRun, run.Name, Name(run).Name)
	labels[v1alpha1.LabelEgress] = string(run.UID)
	return labels
}

// PodLabelsOfSeed are the labels of the Pod that seeds a Workspace.
func PodLabelsOfSeed(ws *v1alpha1.Workspace) map[string]string {
	labels := PodLabels(v1alpha1.LabelWorkspace, ws.Name, WorkspaceName(ws).Name)
	labels[v1alpha1.LabelEgress] = string(ws.UID)
	return labels
}

// Whose are the Pods that policies of others must not select.
const Whose = "Pods of SandboxRuns and Workspaces"
