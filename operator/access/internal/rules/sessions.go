package rules

import (
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// NoSessions says what a template that ends or limits sessions lacks.
func NoSessions(onExpiry v1alpha1.ExpiryAction) string {
	const lacks = "needs recorded sessions, and here none are, or some may go on without being recorded; start admitkit with --sessions and --sessions-unrecorded=Closed, or "
	if onExpiry == v1alpha1.ExpiryEndSession {
		return "EndSession " + lacks + "use Evict"
	}
	return "session " + lacks + "leave it out"
}

// CannotEnd refuses for now what a template needs recorded sessions for.
func CannotEnd(template, why string) *Refusal {
	return Refuse(v1alpha1.ReasonNotRecorded, "template %q ends or limits sessions: %s", template, why).ForNow()
}
