package decision

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// judge says what the decisions about a request lead to, nil to nothing yet.
func (f decider) judge(now time.Time) *Decision {
	verdicts := f.Verdicts()
	if len(verdicts) == 0 {
		return nil
	}
	last := verdicts[len(verdicts)-1]
	switch {
	case last.Decision == v1alpha1.DecisionDeny:
		d := Decision{Dead: true, Status: NewStatus(f.Request, f.End)}
		d.Status.RevokedAt, d.Status.Verdicts = &metav1.Time{Time: now}, verdicts
		d.Status.neverApproved(v1alpha1.ReasonDenied, fmt.Sprintf("denied by %s: %s", last.Username, last.Reason))
		return &d
	case len(verdicts) == int(f.Request.GetRequestSpec().Approval.Required):
		approved := f.Request.DeepCopyObject().(v1alpha1.Request)
		approved.GetRequestStatus().ApprovedAt, approved.GetRequestStatus().Verdicts = &last.Time, verdicts
		end, _ := v1alpha1.EndOf(approved) // one that is invalid is not asked about
		d := Decision{Status: NewStatus(approved, end)}
		d.Status.allowed(approved)
		return &d
	}
	return nil
}

// unapproved refuses a request that waits for approval.
func (f decider) unapproved() *rules.Refusal {
	if !f.WaitsForApproval() {
		return nil
	}
	return &rules.Refusal{
		Reason: v1alpha1.ReasonWaiting, Message: waitingFor(f.Request, f.Verdicts()), Condition: v1alpha1.ConditionApproved, Quiet: true,
	}
}

func waitingFor(req v1alpha1.Request, verdicts []v1alpha1.Verdict) string {
	until, _ := v1alpha1.BeginOf(req)
	return fmt.Sprintf("waiting for approval: it has %s, and waits until %s", req.GetRequestSpec().Approval.Count(len(verdicts)), until.UTC().Format(time.RFC3339))
}

// allowed says that the approvers of a request, and its check, have allowed it.
func (s *Status) allowed(req v1alpha1.Request) {
	terms := req.GetRequestSpec().Approval
	switch {
	case terms == nil:
	case !terms.Needed():
		s.set(v1alpha1.ConditionApproved, true, "Skipped", "without approval, as a member of "+terms.SkippedFor)
	case req.GetRequestStatus().ApprovedAt != nil:
		s.set(v1alpha1.ConditionApproved, true, "Approved", "approved by "+approvers(req.GetRequestStatus().Verdicts))
	}
	if result := req.GetRequestStatus().Check; result != nil && result.Decision == v1alpha1.CheckAllow {
		s.set(v1alpha1.ConditionChecked, true, "Allowed", allowance(result))
	}
}

// NewVerdicts returns the verdicts of those who have none yet.
func NewVerdicts(before, after []v1alpha1.Verdict) []v1alpha1.Verdict {
	return slices.DeleteFunc(slices.Clone(after), func(v v1alpha1.Verdict) bool {
		return slices.ContainsFunc(before, func(b v1alpha1.Verdict) bool { return b.Username == v.Username })
	})
}

func approvers(verdicts []v1alpha1.Verdict) string {
	names := make([]string, len(verdicts))
	for i := range verdicts {
		names[i] = verdicts[i].Username
	}
	return strings.Join(names, ", ")
}

// neverApproved says that a request has ended without having been approved.
func (s *Status) neverApproved(reason, message string) {
	s.nothing(reason, message)
	s.ExpiresAt = nil
	s.set(v1alpha1.ConditionApproved, false, reason, message)
	s.set(v1alpha1.ConditionAccessStillValid, false, reason, message)
}
