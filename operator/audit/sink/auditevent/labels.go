package auditevent

import "github.com/admitkit/admitkit/operator/api/v1alpha1"

// Labels of an AuditEvent, for kubectl get -l. [LabelValue] makes their values.
// An empty field of the record has no label.
const (
	LabelUser      = "admitkit.dev/user"
	LabelNamespace = v1alpha1.LabelAuditNamespace
	LabelPod       = v1alpha1.LabelAuditPod
	LabelDecision  = "admitkit.dev/decision"
	// LabelRequest has the name of the access request.
	LabelRequest = "admitkit.dev/access-request"
	// LabelFolded is "true" on an AuditEvent that counts a flood. Besides, it has the labels
	// of the user, and of the namespace if all acts are in one.
	LabelFolded = v1alpha1.LabelAuditFolded
)

func labelsOf(r *v1alpha1.AuditRecord) map[string]string {
	labels := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			labels[key] = LabelValue(value)
		}
	}
	set(LabelDecision, string(r.Decision))
	set(LabelUser, r.User.Username)
	set(LabelNamespace, r.Namespace)
	set(LabelPod, r.Pod)
	if r.AccessRequest != nil {
		set(LabelRequest, r.AccessRequest.Name)
	}
	return labels
}

// LabelValue returns the label value for a name, as [v1alpha1.AuditLabelValue] does.
func LabelValue(name string) string { return v1alpha1.AuditLabelValue(name) }
