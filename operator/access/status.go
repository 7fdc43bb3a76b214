package access

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// mayAccess says who has got access to what, for Events and notifications.
func mayAccess(s *decision.Status, spec *v1alpha1.RequestSpec) string {
	return fmt.Sprintf("%s may access %s until %s%s%s", spec.Grantee(), s.Chosen(), s.ExpiresAt.UTC().Format(time.RFC3339), grant.AskedBy(spec), grant.WithoutApproval(spec))
}

// write writes the status, if it changed, and reports in an Event what is new.
func (r *requests) write(ctx context.Context, req v1alpha1.Request, s *decision.Status) error {
	s.Settle()
	before := req.GetRequestStatus().DeepCopy()
	if apiequality.Semantic.DeepEqual(*before, s.RequestStatus) {
		return nil
	}
	r.notify(stepsOf(r.kind, req, before, s)) // before it is on record: at least once
	if err := r.PatchStatus(ctx, req, &s.RequestStatus); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.report(req, before, s)
	return nil
}

// report sends an Event about what changed, and counts it.
func (r *requests) report(req v1alpha1.Request, before *v1alpha1.RequestStatus, s *decision.Status) { //nolint:gocyclo // a list of cases, each of which stands alone
	if len(before.Conditions) == 0 {
		r.event(req, corev1.EventTypeNormal, "AccessRequested", "Ask", "%s", grant.AskedFor(req))
	}
	r.reportDecisions(req, before, s)
	is := meta.IsStatusConditionTrue
	created, valid := v1alpha1.ConditionAccessResourcesCreated, v1alpha1.ConditionAccessStillValid
	switch {
	case !is(before.Conditions, created) && is(s.Conditions, created):
		grantedTotal.WithLabelValues(r.kind.Name).Inc()
		r.event(req, corev1.EventTypeNormal, "AccessGranted", "Grant", "%s", mayAccess(s, req.GetRequestSpec()))
	case !meta.IsStatusConditionFalse(before.Conditions, valid) && meta.IsStatusConditionFalse(s.Conditions, valid):
		if is(before.Conditions, created) {
			expiredTotal.WithLabelValues(r.kind.Name).Inc()
		}
		r.event(req, corev1.EventTypeNormal, "AccessEnded", "End", "%s", s.Wanted[valid].Message)
	case before.Ready && s.UsedBy != nil && !s.Ready:
		r.event(req, corev1.EventTypeNormal, "AccessUsed", "Use", "%s used the request up with %s", s.UsedBy.Username, s.UsedBy.Verb)
	case s.Warning != nil:
		if c := meta.FindStatusCondition(before.Conditions, created); c == nil || c.Message != s.Warning.Message {
			r.event(req, corev1.EventTypeWarning, s.Warning.Reason, "Grant", "%s", s.Warning.Message)
		}
	case before.ExpiresAt != nil && s.ExpiresAt != nil && !before.ExpiresAt.Equal(s.ExpiresAt):
		r.event(req, corev1.EventTypeNormal, "EndMoved", "Extend", "access ends at %s", s.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if c, held := s.Wanted[v1alpha1.ConditionEgressHeld], v1alpha1.ConditionEgressHeld; c.Reason == v1alpha1.ReasonEgressNotEnforced && s.Warning == nil && !meta.IsStatusConditionFalse(before.Conditions, held) {
		r.event(req, corev1.EventTypeWarning, c.Reason, "Hold", "%s", c.Message)
	}
	if announced(before, s) {
		r.event(req, corev1.EventTypeNormal, "AccessEndsSoon", "End", "access ends at %s", s.EndAnnounced.UTC().Format(time.RFC3339))
	}
	if !before.Ready && s.Ready {
		r.event(req, corev1.EventTypeNormal, "AccessReady", "Grant", "run: %s", s.AccessMessage)
	}
}

// reportDecisions sends an Event about each decision that is new, and counts it.
func (r *requests) reportDecisions(req v1alpha1.Request, before *v1alpha1.RequestStatus, s *decision.Status) {
	for _, v := range decision.NewVerdicts(before.Verdicts, s.Verdicts) {
		decisionsTotal.WithLabelValues(r.kind.Name, string(v.Decision)).Inc()
		if v.Decision == v1alpha1.DecisionDeny {
			r.event(req, corev1.EventTypeWarning, v1alpha1.ReasonDenied, "Decide", "denied by %s: %s", v.Username, v.Reason)
			continue
		}
		r.event(req, corev1.EventTypeNormal, "Approved", "Decide", "approved by %s, so that it has %s", v.Username, req.GetRequestSpec().Approval.Count(len(s.Verdicts)))
	}
	if c := s.Wanted[v1alpha1.ConditionChecked]; !meta.IsStatusConditionTrue(before.Conditions, c.Type) && c.Status == metav1.ConditionTrue {
		r.event(req, corev1.EventTypeNormal, "Checked", "Check", "%s", c.Message)
	}
	waits := s.Wanted[v1alpha1.ConditionApproved]
	if waits.Reason == v1alpha1.ReasonWaiting && meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionApproved) == nil {
		r.event(req, corev1.EventTypeNormal, "ApprovalNeeded", "Decide", "%s", waits.Message)
	}
}

// maxNote is the length of a note that the API server accepts.
const maxNote = 1024

// noteOf cuts a note to what the API server accepts.
func noteOf(note string) string { return truncate.Text(note, maxNote) }

func (r *requests) event(req v1alpha1.Request, kind, reason, action, format string, args ...any) {
	note := noteOf(fmt.Sprintf(format, args...))
	r.Events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: r.kind.RequestKind,
		Namespace: req.GetNamespace(), Name: req.GetName(), UID: req.GetUID(), ResourceVersion: req.GetResourceVersion(),
	}, nil, kind, reason, action, "%s", note)
}
