package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels of an AuditEvent, by which those about a Pod are found. [AuditLabelValue] makes their values.
const (
	LabelAuditNamespace = "admitkit.dev/namespace"
	LabelAuditPod       = "admitkit.dev/pod"
	// LabelAuditFolded is "true" on an AuditEvent that counts a flood.
	LabelAuditFolded = "admitkit.dev/folded"
)

var notInLabel = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// AuditLabelValue returns the label value for a name: the name itself if it is a
// valid value, and otherwise its readable characters and a part of its SHA-256
// sum, so that different names have different values.
func AuditLabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	readable := notInLabel.ReplaceAllString(name, "_")
	const room = validation.LabelValueMaxLength - 1 - 2*8
	return "u" + readable[:min(len(readable), room-1)] + "-" + hex.EncodeToString(sum[:8])
}
