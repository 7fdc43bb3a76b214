package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// state is the status that a request is to have.
type state struct {
	v1alpha1.RequestStatus
	// wanted are the conditions by their types. They are compared with the present
	// ones when all are known: a condition that changed to and fro on the way would
	// get a new transition time, and the status a needless write.
	wanted map[string]metav1.Condition
	// warning is why access is not granted, if that is worth an Event.
	warning *refusal
}

// newState begins with what stays unless it is changed.
func newState(req v1alpha1.Request, end time.Time) *state {
	before := req.GetRequestStatus().DeepCopy()
	s := &state{RequestStatus: v1alpha1.RequestStatus{
		ObservedGeneration: req.GetGeneration(), PodName: before.PodName, PodUID: before.PodUID, GrantedRole: before.GrantedRole, AccessMessage: before.AccessMessage,
		UsedBy: before.UsedBy, RevokedAt: before.RevokedAt, ApprovedAt: before.ApprovedAt, Verdicts: before.Verdicts, Check: before.Check, Egress: before.Egress, EndAnnounced: before.EndAnnounced,
		GrantedAt: before.GrantedAt, Conditions: before.Conditions,
	}, wanted: map[string]metav1.Condition{}}
	if !end.IsZero() {
		if req.GetRequestSpec().Duration != "" { // else its template will say
			s.ExpiresAt = &metav1.Time{Time: end}
		}
		s.set(v1alpha1.ConditionAccessStillValid, true, "NotExpired", "")
	}
	return s
}

func (s *state) set(condition string, holds bool, reason, message string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	s.wanted[condition] = metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: truncate.Text(message, maxMessage), ObservedGeneration: s.ObservedGeneration,
	}
}

// refused says that nothing is granted, and why.
func (s *state) refused(why *refusal) {
	if !why.quiet {
		s.warning = why
	}
	s.nothing(why.reason, why.message)
	if why.condition != "" {
		s.set(why.condition, false, why.reason, why.message)
	}
}

// nothing says that access is not granted.
func (s *state) nothing(reason, message string) {
	s.Ready, s.AccessMessage = false, ""
	s.set(v1alpha1.ConditionAccessResourcesCreated, false, reason, message)
	s.set(v1alpha1.ConditionAccessResourcesReady, false, reason, message)
}

// withoutTemplate says that access has ended because there is no template.
func (s *state) withoutTemplate(why string) {
	s.nothing(v1alpha1.ReasonTemplateMissing, why)
	s.set(v1alpha1.ConditionTargetTemplateExists, false, v1alpha1.ReasonTemplateMissing, why)
	s.set(v1alpha1.ConditionAccessStillValid, false, v1alpha1.ReasonTemplateMissing, why)
}

// choose says which Pod or role access is to, once and for all.
func (s *state) choose(to choice) {
	switch {
	case to.role != "" && s.GrantedRole == nil:
		s.GrantedRole = &v1alpha1.GrantedRole{Kind: to.role, Name: to.name, UID: string(to.uid)}
	case to.role == "" && s.PodUID == "":
		s.PodName, s.PodUID = to.name, string(to.uid)
	}
}

// chosen returns what access is to.
func (s *state) chosen() choice { return chosenIn(&s.RequestStatus) }

// mayAccess says who has got access to what, for Events and notifications.
func (s *state) mayAccess(spec *v1alpha1.RequestSpec) string {
	return fmt.Sprintf("%s may access %s until %s%s%s", spec.Grantee(), s.chosen(), s.ExpiresAt.UTC().Format(time.RFC3339), askedBy(spec), withoutApproval(spec))
}

// granted says that access is granted. Template and durations were valid when it
// was, and no longer matter.
func (s *state) granted(message string) {
	s.AccessMessage = message
	for _, condition := range []string{v1alpha1.ConditionTargetTemplateExists, v1alpha1.ConditionAccessDurationsValid, v1alpha1.ConditionAccessMessage, v1alpha1.ConditionAccessResourcesCreated} {
		s.set(condition, true, "Granted", "")
	}
}

// grantedAt says when access was granted first, if the RoleBinding tells.
func (s *state) grantedAt(bound metav1.Time) {
	if s.GrantedAt == nil && !bound.IsZero() {
		s.GrantedAt = &bound
	}
}

// observed says whether the Pod of a grant is ready. The Pod of exec access was when
// it was chosen, and when it is gone the RoleBinding is.
func (s *state) observed(k kind, pod *corev1.Pod) {
	const condition = v1alpha1.ConditionAccessResourcesReady
	switch {
	case k.givesRole:
		s.set(condition, true, "RoleBound", "")
	case !k.makesPod, pod != nil && workload.Ready(pod):
		s.set(condition, true, "PodReady", "")
	case pod != nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		s.set(condition, false, v1alpha1.ReasonPodEnded, "the Pod has ended: "+pod.Status.Reason+" "+pod.Status.Message)
	default:
		s.set(condition, false, v1alpha1.ReasonPodNotReady, "the Pod is not ready yet")
	}
}

// used says that the single session of the request has begun.
func (s *state) used() {
	s.nothing(v1alpha1.ReasonUsed, "used by "+s.UsedBy.Username+" for "+s.UsedBy.Verb+" at "+s.UsedBy.Time.UTC().Format(time.RFC3339)+"; make another request")
}

// ended says that time is over, or that access was revoked, and by whom.
func (s *state) ended(end, now time.Time, by *v1alpha1.Revocation) {
	reason, message := v1alpha1.ReasonExpired, "access ended at "+end.UTC().Format(time.RFC3339)
	at, before := s.RevokedAt, meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAccessStillValid)
	switch {
	case at != nil && before != nil && (before.Reason == v1alpha1.ReasonTemplateMissing || before.Reason == v1alpha1.ReasonDenied):
		reason, message = before.Reason, before.Message
	case by != nil:
		reason, message = v1alpha1.ReasonRevoked, fmt.Sprintf("access was revoked by %s at %s", by.By, end.UTC().Format(time.RFC3339))
		if by.Reason != "" {
			message += ": " + by.Reason
		}
	case at != nil && (!at.After(end) || now.Before(end)):
		reason, message = v1alpha1.ReasonRevoked, "access was revoked at "+at.UTC().Format(time.RFC3339)+"; make another request"
	}
	s.nothing(reason, message)
	s.set(v1alpha1.ConditionAccessStillValid, false, reason, message)
}

// ended reports whether a request says that its access has ended. Others may have
// written that: use it only to save work.
func ended(req v1alpha1.Request) bool {
	return meta.IsStatusConditionFalse(req.GetRequestStatus().Conditions, v1alpha1.ConditionAccessStillValid)
}

func wasGranted(req v1alpha1.Request) bool {
	return meta.IsStatusConditionTrue(req.GetRequestStatus().Conditions, v1alpha1.ConditionAccessResourcesCreated)
}

// lost reports whether what was granted is gone for good, before its end.
func (s *state) lost() bool {
	c := s.wanted[v1alpha1.ConditionAccessResourcesCreated]
	return c.Status == metav1.ConditionFalse && (c.Reason == v1alpha1.ReasonRoleLost || c.Reason == v1alpha1.ReasonPodGone)
}

// settle puts the conditions into the status.
func (s *state) settle() {
	for _, condition := range slices.Sorted(maps.Keys(s.wanted)) {
		meta.SetStatusCondition(&s.Conditions, s.wanted[condition])
	}
	s.Ready = meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessResourcesReady) &&
		meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessResourcesCreated) &&
		meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessStillValid)
}

// write writes the status, if it changed, and reports in an Event what is new.
func (r *requests) write(ctx context.Context, req v1alpha1.Request, s *state) error {
	s.settle()
	before := req.GetRequestStatus().DeepCopy()
	if apiequality.Semantic.DeepEqual(*before, s.RequestStatus) {
		return nil
	}
	r.notify(r.kind.steps(req, before, s)) // before it is on record: at least once
	if err := r.patchStatus(ctx, req, s); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.report(req, before, s)
	return nil
}

// patchStatus is the one place that writes the status of a request.
func (r *requests) patchStatus(ctx context.Context, req v1alpha1.Request, s *state) error {
	before := req.DeepCopyObject().(v1alpha1.Request)
	*req.GetRequestStatus() = s.RequestStatus
	if err := r.writer.Status().Patch(ctx, req, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	after := req.GetRequestStatus()
	if s.RevokedAt != nil && after.RevokedAt == nil || s.PodUID != "" && after.PodUID == "" || s.ApprovedAt != nil && after.ApprovedAt == nil ||
		s.GrantedRole != nil && after.GrantedRole == nil || s.Check != nil && after.Check == nil || s.Egress != nil && after.Egress == nil {
		return errors.New("the CRD is of an older version, without status.revokedAt, status.podUID, status.grantedRole, status.approvedAt, status.check or status.egress: apply operator/config/crd of this one")
	}
	return nil
}

// report sends an Event about what changed, and counts it.
func (r *requests) report(req v1alpha1.Request, before *v1alpha1.RequestStatus, s *state) { //nolint:gocyclo // a list of cases, each of which stands alone
	if len(before.Conditions) == 0 {
		r.event(req, corev1.EventTypeNormal, "AccessRequested", "Ask", "%s", askedFor(req))
	}
	r.reportDecisions(req, before, s)
	is := meta.IsStatusConditionTrue
	created, valid := v1alpha1.ConditionAccessResourcesCreated, v1alpha1.ConditionAccessStillValid
	switch {
	case !is(before.Conditions, created) && is(s.Conditions, created):
		grantedTotal.WithLabelValues(r.kind.name).Inc()
		r.event(req, corev1.EventTypeNormal, "AccessGranted", "Grant", "%s", s.mayAccess(req.GetRequestSpec()))
	case !meta.IsStatusConditionFalse(before.Conditions, valid) && meta.IsStatusConditionFalse(s.Conditions, valid):
		if is(before.Conditions, created) {
			expiredTotal.WithLabelValues(r.kind.name).Inc()
		}
		r.event(req, corev1.EventTypeNormal, "AccessEnded", "End", "%s", s.wanted[valid].Message)
	case before.Ready && s.UsedBy != nil && !s.Ready:
		r.event(req, corev1.EventTypeNormal, "AccessUsed", "Use", "%s used the request up with %s", s.UsedBy.Username, s.UsedBy.Verb)
	case s.warning != nil:
		if c := meta.FindStatusCondition(before.Conditions, created); c == nil || c.Message != s.warning.message {
			r.event(req, corev1.EventTypeWarning, s.warning.reason, "Grant", "%s", s.warning.message)
		}
	case before.ExpiresAt != nil && s.ExpiresAt != nil && !before.ExpiresAt.Equal(s.ExpiresAt):
		r.event(req, corev1.EventTypeNormal, "EndMoved", "Extend", "access ends at %s", s.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if c, held := s.wanted[v1alpha1.ConditionEgressHeld], v1alpha1.ConditionEgressHeld; c.Reason == v1alpha1.ReasonEgressNotEnforced && s.warning == nil && !meta.IsStatusConditionFalse(before.Conditions, held) {
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
func (r *requests) reportDecisions(req v1alpha1.Request, before *v1alpha1.RequestStatus, s *state) {
	for _, v := range newVerdicts(before.Verdicts, s.Verdicts) {
		decisionsTotal.WithLabelValues(r.kind.name, string(v.Decision)).Inc()
		if v.Decision == v1alpha1.DecisionDeny {
			r.event(req, corev1.EventTypeWarning, v1alpha1.ReasonDenied, "Decide", "denied by %s: %s", v.Username, v.Reason)
			continue
		}
		r.event(req, corev1.EventTypeNormal, "Approved", "Decide", "approved by %s, so that it has %s", v.Username, req.GetRequestSpec().Approval.Count(len(s.Verdicts)))
	}
	if c := s.wanted[v1alpha1.ConditionChecked]; !meta.IsStatusConditionTrue(before.Conditions, c.Type) && c.Status == metav1.ConditionTrue {
		r.event(req, corev1.EventTypeNormal, "Checked", "Check", "%s", c.Message)
	}
	waits := s.wanted[v1alpha1.ConditionApproved]
	if waits.Reason == v1alpha1.ReasonWaiting && meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionApproved) == nil {
		r.event(req, corev1.EventTypeNormal, "ApprovalNeeded", "Decide", "%s", waits.Message)
	}
}

// maxNote is the length of a note that the API server accepts.
const maxNote = 1024

// maxMessage is the length of a condition's message that the API server accepts.
const maxMessage = 32768

// noteOf cuts a note to what the API server accepts.
func noteOf(note string) string { return truncate.Text(note, maxNote) }

func (r *requests) event(req v1alpha1.Request, kind, reason, action, format string, args ...any) {
	note := noteOf(fmt.Sprintf(format, args...))
	r.events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: r.kind.request,
		Namespace: req.GetNamespace(), Name: req.GetName(), UID: req.GetUID(), ResourceVersion: req.GetResourceVersion(),
	}, nil, kind, reason, action, "%s", note)
}
