package decision

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

// Status is the status that a request is to have.
type Status struct {
	v1alpha1.RequestStatus
	// Wanted are the conditions by their types. They are compared with the present
	// ones when all are known: a condition that changed to and fro on the way would
	// get a new transition time, and the status a needless write.
	Wanted map[string]metav1.Condition
	// Warning is why access is not granted, if that is worth an Event.
	Warning *rules.Refusal
}

// NewStatus begins with what stays unless it is changed.
func NewStatus(req v1alpha1.Request, end time.Time) *Status {
	before := req.GetRequestStatus().DeepCopy()
	s := &Status{RequestStatus: v1alpha1.RequestStatus{
		ObservedGeneration: req.GetGeneration(), PodName: before.PodName, PodUID: before.PodUID, GrantedRole: before.GrantedRole, AccessMessage: before.AccessMessage,
		UsedBy: before.UsedBy, RevokedAt: before.RevokedAt, ApprovedAt: before.ApprovedAt, Verdicts: before.Verdicts, Check: before.Check, Egress: before.Egress, EndAnnounced: before.EndAnnounced,
		GrantedAt: before.GrantedAt, Conditions: before.Conditions,
	}, Wanted: map[string]metav1.Condition{}}
	if !end.IsZero() {
		if req.GetRequestSpec().Duration != "" { // else its template will say
			s.ExpiresAt = &metav1.Time{Time: end}
		}
		s.set(v1alpha1.ConditionAccessStillValid, true, "NotExpired", "")
	}
	return s
}

func (s *Status) set(condition string, holds bool, reason, message string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	s.Wanted[condition] = metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: truncate.Text(message, maxMessage), ObservedGeneration: s.ObservedGeneration,
	}
}

// Refused says that nothing is granted, and why.
func (s *Status) Refused(why *rules.Refusal) {
	if !why.Quiet {
		s.Warning = why
	}
	s.nothing(why.Reason, why.Message)
	if why.Condition != "" {
		s.set(why.Condition, false, why.Reason, why.Message)
	}
}

// nothing says that access is not granted.
func (s *Status) nothing(reason, message string) {
	s.Ready, s.AccessMessage = false, ""
	s.set(v1alpha1.ConditionAccessResourcesCreated, false, reason, message)
	s.set(v1alpha1.ConditionAccessResourcesReady, false, reason, message)
}

// withoutTemplate says that access has ended because there is no template.
func (s *Status) withoutTemplate(why string) {
	s.nothing(v1alpha1.ReasonTemplateMissing, why)
	s.set(v1alpha1.ConditionTargetTemplateExists, false, v1alpha1.ReasonTemplateMissing, why)
	s.set(v1alpha1.ConditionAccessStillValid, false, v1alpha1.ReasonTemplateMissing, why)
}

// Choose says which Pod or role access is to, once and for all.
func (s *Status) Choose(to grant.Choice) {
	switch {
	case to.Role != "" && s.GrantedRole == nil:
		s.GrantedRole = &v1alpha1.GrantedRole{Kind: to.Role, Name: to.Name, UID: string(to.UID)}
	case to.Role == "" && s.PodUID == "":
		s.PodName, s.PodUID = to.Name, string(to.UID)
	}
}

// Chosen returns what access is to.
func (s *Status) Chosen() grant.Choice { return grant.ChosenIn(&s.RequestStatus) }

// Granted says that access is granted. Template and durations were valid when it
// was, and no longer matter.
func (s *Status) Granted(message string) {
	s.AccessMessage = message
	for _, condition := range []string{v1alpha1.ConditionTargetTemplateExists, v1alpha1.ConditionAccessDurationsValid, v1alpha1.ConditionAccessMessage, v1alpha1.ConditionAccessResourcesCreated} {
		s.set(condition, true, "Granted", "")
	}
}

// SetGrantedAt says when access was granted first, if the RoleBinding tells.
func (s *Status) SetGrantedAt(bound metav1.Time) {
	if s.GrantedAt == nil && !bound.IsZero() {
		s.GrantedAt = &bound
	}
}

// Observed says whether the Pod of a grant is ready. The Pod of exec access was when
// it was chosen, and when it is gone the RoleBinding is.
func (s *Status) Observed(k grant.Kind, pod *corev1.Pod) {
	const condition = v1alpha1.ConditionAccessResourcesReady
	switch {
	case k.GivesRole:
		s.set(condition, true, "RoleBound", "")
	case !k.MakesPod, pod != nil && workload.Ready(pod):
		s.set(condition, true, "PodReady", "")
	case pod != nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		s.set(condition, false, v1alpha1.ReasonPodEnded, "the Pod has ended: "+pod.Status.Reason+" "+pod.Status.Message)
	default:
		s.set(condition, false, v1alpha1.ReasonPodNotReady, "the Pod is not ready yet")
	}
}

// Held says in the status whether the Pod is held.
func (s *Status) Held(f *facts.Facts, e *v1alpha1.EgressDecision) {
	const condition = v1alpha1.ConditionEgressHeld
	switch {
	case e == nil:
	case e.Policy == "":
		s.set(condition, false, v1alpha1.ReasonEgressNotEnforced, "nothing holds the access Pod to the egress of its template: "+e.Reason)
	case f.EgressOptions == nil || !f.EgressOptions.On():
		s.set(condition, false, v1alpha1.ReasonEgressNotEnforced, "nobody keeps the policy of the access Pod in force any more: the operator has changed --access-network-policy")
	default:
		s.set(condition, true, v1alpha1.ReasonPolicyInForce, fmt.Sprintf("%s %s holds the access Pod: %s", e.Policy, f.Kind.Resource(f.Key).Name, e.Reason))
	}
}

// used says that the single session of the request has begun.
func (s *Status) used() {
	s.nothing(v1alpha1.ReasonUsed, "used by "+s.UsedBy.Username+" for "+s.UsedBy.Verb+" at "+s.UsedBy.Time.UTC().Format(time.RFC3339)+"; make another request")
}

// ended says that time is over, or that access was revoked, and by whom.
func (s *Status) ended(end, now time.Time, by *v1alpha1.Revocation) {
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

// Lost reports whether what was granted is gone for good, before its end.
func (s *Status) Lost() bool {
	c := s.Wanted[v1alpha1.ConditionAccessResourcesCreated]
	return c.Status == metav1.ConditionFalse && (c.Reason == v1alpha1.ReasonRoleLost || c.Reason == v1alpha1.ReasonPodGone)
}

// Settle puts the conditions into the status.
func (s *Status) Settle() {
	for _, condition := range slices.Sorted(maps.Keys(s.Wanted)) {
		meta.SetStatusCondition(&s.Conditions, s.Wanted[condition])
	}
	s.Ready = meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessResourcesReady) &&
		meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessResourcesCreated) &&
		meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccessStillValid)
}

// maxMessage is the length of a condition's message that the API server accepts.
const maxMessage = 32768

// Revocation returns the status of a request that is revoked now, nil if it was
// revoked before, and whether its access was live until now.
func Revocation(req v1alpha1.Request, now time.Time) (revoked *Status, live bool) {
	if req.GetRequestStatus().RevokedAt != nil {
		return nil, false
	}
	revoked = &Status{RequestStatus: *req.GetRequestStatus().DeepCopy()}
	live = !v1alpha1.Over(req, now)
	if live {
		revoked = NewStatus(req, now)
	}
	revoked.RevokedAt = &metav1.Time{Time: now}
	if live {
		revoked.ended(now, now, nil)
		revoked.Settle()
	}
	return revoked, live
}
