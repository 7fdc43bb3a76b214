package decision

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Decision is what to do about a request, in the order of the fields.
type Decision struct {
	// Dead and Live say whether the request counts as a live grant; neither leaves
	// that as it is.
	Dead, Live bool

	// Unbind deletes the RoleBinding, with which access ends; Late says that its time
	// is over.
	Unbind, Late bool
	// Remove deletes the access Pod, Evict evicts the Pod of exec access.
	Remove, Evict grant.Choice
	// Unrecord deletes the Role. It goes last, because it records what there is to do.
	Unrecord bool

	// Complete writes into the request what its template says, which did not exist when
	// the request was made.
	Complete bool
	// Check names the check to ask about the request, "" for none.
	Check string
	// Grant gives the Pod what it lacks, if it is not nil.
	Grant *Grant

	// Status is what the request says then; nil leaves it as it is.
	Status *Status
	// Discard deletes the request, which has been kept long enough.
	Discard bool

	// Waits says that the request waits for something that is not watched.
	Waits bool
	// Behind says that the cache has yet to learn of what was done.
	Behind bool
	// Next is when to look at the request again.
	Next Schedule
}

// Grant is what a request gets.
type Grant struct {
	// Pod is the access Pod to make, or the Pod that was chosen for exec access; nil
	// if the record has it already.
	Pod *corev1.Pod
	// Role is the role that was asked for.
	Role grant.Choice
	// Template is what allows it.
	Template v1alpha1.Template
}

// Schedule is a moment, and the priority in the queue at that moment; the zero value
// is never.
type Schedule struct {
	At       time.Time
	Priority int
}

// cleanupDelay keeps the clean-up out of the way of others' ends. Creation times
// are whole seconds and durations mostly are, so that access ends at whole seconds;
// half a second later there is time for the rest.
const cleanupDelay = 500 * time.Millisecond

// Next is when a request is looked at again if nothing happens to it: at the very
// moment at which its access ends, and when it has been kept long enough.
func Next(f *facts.Facts, now time.Time) Schedule {
	switch f.Stage(now) {
	case facts.Gone, facts.Invalid:
		return Schedule{}
	case facts.Over:
		if f.MayBeBound() {
			return Schedule{now.Add(cleanupDelay), controller.PriorityCleanup}
		}
		return Schedule{f.KeepUntil, controller.PriorityCleanup}
	case facts.Granted:
		if at, warns := v1alpha1.WarnAt(f.Request, f.WarnBefore); warns && now.Before(at) {
			return Schedule{At: at}
		}
	case facts.Asking:
		if late := grant.WaitsUntil(f.Request); f.Template == nil && f.Closed == nil && now.Before(late) && late.Before(f.End) {
			return Schedule{At: late}
		}
	}
	return Schedule{f.End, controller.PriorityEnd}
}

// Of decides what to do about a request. It reads nothing and changes nothing.
func Of(f *facts.Facts, now time.Time) Decision {
	d := decider{f}.decide(now)
	d.Next = Next(f, now)
	return d
}

// decider decides by the facts.
type decider struct{ *facts.Facts }

func (f decider) decide(now time.Time) Decision {
	switch f.Stage(now) {
	case facts.Gone:
		return f.sweep()
	case facts.Invalid:
		d := f.sweep()
		d.Status = NewStatus(f.Request, time.Time{})
		d.Status.Refused(rules.Refuse(v1alpha1.ReasonDurationInvalid, "%v", f.Invalid).About(v1alpha1.ConditionAccessDurationsValid))
		return d
	case facts.Over:
		if f.MayBeBound() {
			return Decision{Unbind: true, Late: true, Remove: f.Made}
		}
		return f.finish(now)
	case facts.Stale:
		d := f.sweep()
		d.Behind = true
		return d
	case facts.Used:
		d := Decision{Dead: true, Unbind: f.Binding != nil, Status: NewStatus(f.Request, f.End)}
		d.Status.used()
		return d
	case facts.Asking:
		return f.ask(now)
	}
	if f.TemplateGone {
		return f.recall(now, templateDeleted)
	}
	if f.Binding == nil && (f.ApprovalIsMissing() || f.CheckIsMissing()) {
		return Decision{Dead: true, Unbind: true, Unrecord: true, Waits: true} // the next attempt asks for it
	}
	d := f.keep()
	if d.Live {
		f.announce(d.Status, now)
	}
	return d
}

// ask decides about a request that has nothing yet.
func (f decider) ask(now time.Time) Decision {
	switch {
	case f.TemplateGone && f.Settled() != (grant.Choice{}):
		return f.recall(now, templateDeleted)
	case f.TemplateLate():
		return f.recall(now, notInTime())
	case f.IsOfAnother():
		return f.recall(now, templateReplaced)
	case f.GivesOther():
		return f.recall(now, templateChanged)
	}
	if judged := f.judge(now); judged != nil {
		return *judged
	}
	if refused := f.refusedByCheck(now); refused != nil {
		return *refused
	}
	return f.answer()
}

// announce announces the end of access shortly before it, once. It is in the status, so that
// neither a restart nor another leader announces it again.
func (f decider) announce(s *Status, now time.Time) {
	at, warns := v1alpha1.WarnAt(f.Request, f.WarnBefore)
	if warns && !now.Before(at) && (s.EndAnnounced == nil || s.EndAnnounced.Unix() != f.End.Unix()) {
		s.EndAnnounced = &metav1.Time{Time: f.End}
	}
}

// recall ends access because its template was deleted, which whoever may do that relies
// on in an emergency, or has not come. A template that is made again does not give it back.
func (f decider) recall(now time.Time, why string) Decision {
	d := Decision{Dead: true, Unbind: f.Binding != nil, Status: NewStatus(f.Request, f.End)}
	d.Status.RevokedAt = &metav1.Time{Time: now}
	d.Status.withoutTemplate(why)
	return d
}

const (
	templateReplaced = "the template was replaced by another of its name after the request was made; make another request"
	templateChanged  = "the template gives something else than when the request was made, which nobody has approved; make another request"
	templateDeleted  = "the template was deleted, and with it the access that it gave; make another request"
)

func notInTime() string {
	return fmt.Sprintf("the template did not come within %s of the request; make another request", v1alpha1.TemplateWait)
}

// sweep takes away all that there is.
func (f decider) sweep() Decision {
	return Decision{Dead: true, Unbind: f.Binding != nil, Remove: f.Made, Evict: f.evicted(), Unrecord: f.Role != nil}
}

// evicted returns the Pod to evict when access ends, if the record asks for it, or, where
// somebody has deleted that, the template.
func (f decider) evicted() grant.Choice {
	switch {
	case f.Kind.MakesPod, f.Kind.GivesRole:
	case f.Role == nil:
		if f.Template != nil && f.Template.GetAccessConfig().OnExpiry == v1alpha1.ExpiryEvict {
			return f.Settled()
		}
	case f.Role.Annotations[grant.AnnotationOnExpiry] == string(v1alpha1.ExpiryEvict):
		return grant.ChoiceOf(f.Role)
	}
	return grant.Choice{}
}

// finish cleans up after the end, when the RoleBinding is gone. Until the request
// says that its access has ended, the Role is deleted by its name even if the cache
// has none; see [facts.Facts.MayBeBound].
func (f decider) finish(now time.Time) Decision {
	first := !grant.Ended(f.Request)
	d := Decision{
		Dead: true, Remove: f.Made, Evict: f.evicted(), Unrecord: first || f.Role != nil,
		Status: NewStatus(f.Request, f.End), Discard: !now.Before(f.KeepUntil),
	}
	d.Status.ended(f.End, now, f.Request.GetRequestSpec().Revoked)
	if f.WaitsForApproval() {
		valid := d.Status.Wanted[v1alpha1.ConditionAccessStillValid]
		reason, message := valid.Reason, valid.Message
		if !f.wasRevoked() {
			reason = v1alpha1.ReasonTimedOut
			message = "not approved in time: it had " + f.Request.GetRequestSpec().Approval.Count(len(d.Status.Verdicts)) + " at " + f.End.UTC().Format(time.RFC3339) + "; make another request"
		}
		d.Status.neverApproved(reason, message)
	}
	f.neverChecked(d.Status)
	if f.Request.GetRequestSpec().Duration == "" && !f.wasRevoked() {
		d.Status.withoutTemplate(notInTime())
	}
	return d
}

// wasRevoked reports whether a request was revoked, whoever did that.
func (f decider) wasRevoked() bool {
	return f.Request.GetRequestSpec().Revoked != nil || f.Request.GetRequestStatus().RevokedAt != nil
}

// answer grants what a request asks for, or says why not.
func (f decider) answer() Decision {
	d := Decision{Status: NewStatus(f.Request, f.End)}
	d.Status.allowed(f.Request)
	if f.WaitsForApproval() {
		d.Status.ExpiresAt, d.Status.Verdicts = nil, f.Verdicts()
	}
	if f.Template != nil && f.Template.GetAccessConfig().Check != "" && f.Request.GetRequestStatus().Check == nil {
		d.Status.ExpiresAt = nil // it may say another
	}
	if f.Closed == nil && f.Template != nil && f.Incomplete() {
		return Decision{Complete: true}
	}
	var pod *corev1.Pod
	for _, check := range []struct {
		condition, reason string // what holds if the check refuses nothing
		refuses           func() *rules.Refusal
	}{
		{"", "", func() *rules.Refusal { return f.Closed }},
		{v1alpha1.ConditionTargetTemplateExists, "Found", f.noTemplate},
		{v1alpha1.ConditionAccessDurationsValid, "Valid", func() *rules.Refusal { return rules.Allows(f.Template, f.Request.GetRequestSpec()) }},
		{"", "", f.unenforced},
		{"", "", f.unapproved},
		{"", "", f.tooMany},
		{"", "", f.unavailable},
		{"", "", func() *rules.Refusal { return f.NoHold }},
		{"", "", func() *rules.Refusal { return f.Unended }},
		{"", "", func() (refused *rules.Refusal) { pod, refused = f.pod(); return refused }},
		{"", "", f.unchecked}, // last, so that its answer is about what is otherwise granted now
	} {
		if refused := check.refuses(); refused != nil {
			d.Status.Refused(refused)
			d.Waits, d.Check = refused.Waits, refused.Check
			return d
		}
		if check.condition != "" {
			d.Status.set(check.condition, true, check.reason, "")
		}
	}
	d.Grant = &Grant{Pod: pod, Role: f.NewRole, Template: f.Template}
	return d
}

func (f decider) noTemplate() *rules.Refusal {
	if f.Template != nil {
		return nil
	}
	refused := rules.MissingTemplate(f.Kind, f.Key.Namespace, f.Request.GetRequestSpec().TemplateName)
	refused.Message += f.Kind.Waits(f.Request.GetCreationTimestamp().Time)
	return refused.About(v1alpha1.ConditionTargetTemplateExists)
}

// unenforced refuses a single use that nothing would enforce. Admission does that, too,
// but not while the template is yet to come.
func (f decider) unenforced() *rules.Refusal {
	if f.Request.GetRequestSpec().SingleUse && !f.Enforced {
		return rules.RefuseSingleUse()
	}
	return nil
}

// unavailable says why there is no Pod or role to give access to for now. Once there was one,
// no other is chosen.
func (f decider) unavailable() *rules.Refusal {
	if f.Kind.GivesRole {
		return f.NoRole
	}
	refused, settled := rules.NoTarget(f.NoTarget), f.Settled()
	switch {
	case settled == grant.Choice{}:
	case refused != nil && refused.Reason == v1alpha1.ReasonUnknownPod:
		return rules.LostPod(settled.Name, rules.PodGone)
	case f.Chosen != nil && f.Chosen.UID != settled.UID:
		return rules.LostPod(settled.Name, rules.PodReplaced)
	}
	return refused
}

func (f decider) tooMany() *rules.Refusal {
	if refused := rules.TooMany(f.Template, f.Request.GetRequestSpec(), f.OthersOpen); refused != nil {
		return refused.ForNow()
	}
	return nil
}

// pod returns the Pod that access will be to: the one that was chosen, or one to be
// made, nil if it is to a role. Anything wrong with the access command is found before there is a Pod, which
// nobody could use.
func (f decider) pod() (*corev1.Pod, *rules.Refusal) {
	if f.Kind.GivesRole {
		return nil, nil
	}
	t, ok := f.Template.(*v1alpha1.PodAccessTemplate)
	if !ok {
		_, refused := rules.CommandFor(f.Template, &f.Chosen.ObjectMeta)
		return f.Chosen, refused
	}
	limit, err := rules.MaxDuration(&t.Spec.AccessConfig)
	if err != nil {
		return nil, rules.Refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err).ForNow()
	}
	meta := f.Kind.Meta(f.Request)
	meta.OwnerReferences = []metav1.OwnerReference{f.Kind.OwnedBy(f.Request)}
	if f.Hold != nil && f.Hold.Policy != "" {
		meta.Labels[v1alpha1.LabelEgress] = string(f.Request.GetUID())
	}
	made, err := pod.New(meta, t, f.Target, limit)
	if err == nil && f.Hold != nil {
		err = rules.FitsEgress(f.EgressOptions, t, made)
	}
	if err != nil {
		return nil, rules.Refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err).ForNow()
	}
	if _, refused := rules.CommandFor(t, &made.ObjectMeta); refused != nil {
		return nil, refused.ForNow()
	}
	return made, nil
}

// keep keeps what was granted, and completes it. When the Pod is lost another is not
// chosen, and the RoleBinding, which the Pod owned, is not made again. One that the
// Pod does not own any more goes, and one that says something else than was granted; the
// next attempt finds out why, and makes another if it is to be.
func (f decider) keep() Decision {
	lost := f.loss()
	if lost == nil && (f.Disowned() || f.Drifted()) {
		return Decision{Dead: true, Unbind: true}
	}
	d := Decision{Status: NewStatus(f.Request, f.End)}
	d.Status.allowed(f.Request)
	d.Status.Choose(grant.ChoiceOf(f.Role))
	if lost != nil {
		d.Dead, d.Unbind, d.Waits = true, f.Binding != nil, lost.Waits
		d.Status.Refused(lost)
		return d
	}
	if f.Binding != nil {
		d.Live = true
		d.Status.SetGrantedAt(f.Binding.CreationTimestamp)
	} else {
		d.Grant = &Grant{}
	}
	d.Status.Granted(f.Role.Annotations[grant.AnnotationMessage])
	d.Status.Observed(f.Kind, f.Own)
	d.Status.Held(f.Facts, f.Request.GetRequestStatus().Egress)
	return d
}

// loss says why a grant ends before its time: its Pod, or its role, is lost.
func (f decider) loss() *rules.Refusal {
	switch {
	case f.NoRole != nil:
		return f.NoRole
	case f.Lost != "":
		return rules.LostPod(grant.ChoiceOf(f.Role).Name, f.Lost)
	case f.Unended != nil:
		return f.Unended
	}
	return nil
}
