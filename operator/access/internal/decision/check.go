package decision

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// unchecked refuses a request that its check has not allowed.
func (f decider) unchecked() *rules.Refusal {
	name, result := f.Template.GetAccessConfig().Check, f.Request.GetRequestStatus().Check
	var refused *rules.Refusal
	switch {
	case name == "":
		return nil
	case f.NoCheck != nil:
		refused = rules.Refuse(v1alpha1.ReasonCheckFailed, "%s", f.NoCheck.Message)
	case result == nil && f.Trouble != "":
		refused = rules.Refuse(v1alpha1.ReasonCheckFailed, "waiting for the check %s: %s; it is asked again", name, f.Trouble)
		refused.Check = name
	case result == nil:
		refused = rules.Refuse(v1alpha1.ReasonWaiting, "waiting for the check %s", name)
		refused.Check, refused.Quiet = name, true
	case result.Name != name:
		refused = rules.Refuse(v1alpha1.ReasonCheckReplaced, "the request was allowed by the check %s, and its template now names %s; make another request", result.Name, name)
	default:
		return nil
	}
	return refused.About(v1alpha1.ConditionChecked)
}

// refusedByCheck ends a request that its check denies, nil for any other. A check that
// is asked another time could say something else, and so it is asked once.
func (f decider) refusedByCheck(now time.Time) *Decision {
	result := f.Request.GetRequestStatus().Check
	if result == nil || result.Decision != v1alpha1.CheckDeny {
		return nil
	}
	d := Decision{Dead: true, Status: NewStatus(f.Request, f.End)}
	d.Status.RevokedAt = &metav1.Time{Time: now}
	message := fmt.Sprintf("denied by the check %s: %s", result.Name, grant.Said(result.Message))
	d.Status.nothing(v1alpha1.ReasonDenied, message)
	d.Status.ExpiresAt = nil
	d.Status.set(v1alpha1.ConditionChecked, false, v1alpha1.ReasonDenied, message)
	d.Status.set(v1alpha1.ConditionAccessStillValid, false, v1alpha1.ReasonDenied, message)
	return &d
}

// neverChecked says that a request has ended whose check has not allowed it.
func (f decider) neverChecked(s *Status) {
	status := f.Request.GetRequestStatus()
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionChecked)
	switch {
	case status.Check != nil && status.Check.Decision == v1alpha1.CheckDeny:
		s.ExpiresAt = nil
	case status.Check == nil && grant.ChosenIn(status) == grant.Choice{} && c != nil && !f.wasRevoked():
		s.ExpiresAt = nil
		message := "its check has not answered until " + f.End.UTC().Format(time.RFC3339) + "; make another request"
		s.nothing(v1alpha1.ReasonTimedOut, message)
		s.set(v1alpha1.ConditionChecked, false, v1alpha1.ReasonTimedOut, message)
		s.set(v1alpha1.ConditionAccessStillValid, false, v1alpha1.ReasonTimedOut, message)
	}
}

func allowance(result *v1alpha1.CheckResult) string {
	message := "allowed by the check " + result.Name
	if most := result.MaxDurationSeconds; most > 0 {
		message += ", for at most " + (time.Duration(min(most, int64(maxSeconds))) * time.Second).String()
	}
	if result.Message != "" {
		message += ": " + result.Message
	}
	return message
}

// maxSeconds is as many as a duration holds.
const maxSeconds = 9_000_000_000
