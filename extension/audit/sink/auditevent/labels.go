package auditevent

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// Labels of an AuditEvent, for kubectl get -l. [LabelValue] makes their values.
// An empty field of the record has no label.
const (
	LabelUser      = "admitkit.dev/user"
	LabelNamespace = "admitkit.dev/namespace"
	LabelPod       = "admitkit.dev/pod"
	LabelDecision  = "admitkit.dev/decision"
	// LabelRequest has the name of the access request.
	LabelRequest = "admitkit.dev/access-request"
	// LabelFolded is "true" on an AuditEvent that counts a flood. Besides, it has the labels
	// of the user, and of the namespace if all acts are in one.
	LabelFolded = "admitkit.dev/folded"
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

var notInLabel = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// LabelValue returns the label value for a name: the name itself if it is a
// valid value, and otherwise its readable characters and a part of its SHA-256
// sum, so that different names have different values.
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	readable := notInLabel.ReplaceAllString(name, "_")
	const room = validation.LabelValueMaxLength - 1 - 2*8
	return "u" + readable[:min(len(readable), room-1)] + "-" + hex.EncodeToString(sum[:8])
}
