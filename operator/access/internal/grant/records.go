package grant

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The actions of the records about a request; see [extension.Record]. It outlives the
// request. Each record is made before what it is about, so that nothing is granted
// without one where the recorder demands it, and once: its ID is the request's UID with
// the word.
const (
	ActionAsked    = "asked"
	ActionApproved = "approved"
	ActionChecked  = "checked"
	ActionDenied   = "denied"
	ActionTimedOut = "timed-out"
	ActionGranted  = "granted"
	ActionMoved    = "end-moved"
	ActionUsed     = "used"
	ActionRevoked  = "revoked"
	ActionEnded    = "ended"
	ActionDeleted  = "deleted"
	ActionRestored = "restored"
)

// About returns a record about a request.
func (k Kind) About(req v1alpha1.Request, action, format string, args ...any) extension.Record {
	record := extension.Record{
		ID: string(req.GetUID()) + "-" + action, Action: action, Reason: fmt.Sprintf(format, args...),
		Object: corev1.ObjectReference{Kind: k.RequestKind, Namespace: req.GetNamespace(), Name: req.GetName(), UID: req.GetUID()},
	}
	if who := req.GetRequestSpec().Requester; who != nil {
		record.User = authenticationv1.UserInfo{Username: who.Username, UID: who.UID, Groups: who.Groups}
	}
	if other := req.GetRequestSpec().OnBehalfOf; other != "" && action != ActionAsked {
		record.User = authenticationv1.UserInfo{Username: other} // whose access it is
	}
	if status := req.GetRequestStatus(); status.PodName != "" {
		record.Pod = corev1.ObjectReference{Name: status.PodName, UID: types.UID(status.PodUID)}
	}
	return record
}

// ShortHash stands for a user's name in an ID.
func ShortHash(username string) string {
	sum := sha256.Sum256([]byte(username))
	return hex.EncodeToString(sum[:8])
}

// RequesterOf names who asks, and for whom.
func RequesterOf(req v1alpha1.Request) string {
	if who := req.GetRequestSpec().Requester; who != nil {
		return who.Username + onBehalf(req.GetRequestSpec())
	}
	return "nobody"
}

func requesterNamed(req v1alpha1.Request) string {
	if who := req.GetRequestSpec().Requester; who != nil {
		return who.Username
	}
	return "nobody"
}

// onBehalf names who is asked for, if that is somebody else.
func onBehalf(spec *v1alpha1.RequestSpec) string {
	if spec.OnBehalfOf == "" {
		return ""
	}
	return " on behalf of " + spec.OnBehalfOf
}

// AskedBy names who asked, if that is somebody else than who gets access.
func AskedBy(spec *v1alpha1.RequestSpec) string {
	if spec.OnBehalfOf == "" || spec.Requester == nil {
		return ""
	}
	return ", as asked by " + spec.Requester.Username
}

// WithoutApproval says for a record that nobody approved, and why that was not needed.
func WithoutApproval(spec *v1alpha1.RequestSpec) string {
	if spec.Approval == nil || spec.Approval.Needed() {
		return ""
	}
	return ", without approval as a member of " + spec.Approval.SkippedFor
}

// Asks says what a request asks for.
func Asks(spec *v1alpha1.RequestSpec) string {
	return fmt.Sprintf("asks for access%s by template %s for %s: %s", onBehalf(spec), spec.TemplateName, cmp.Or(spec.Duration, "as long as it says"), Said(spec.Reason))
}

// AskedFor says who asks, and what for.
func AskedFor(req v1alpha1.Request) string {
	return requesterNamed(req) + " " + Asks(req.GetRequestSpec())
}

// Said returns the reason that somebody gave, or says that there is none.
func Said(message string) string { return cmp.Or(message, "no reason given") }
