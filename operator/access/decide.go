package access

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// decision is what to do about a request. apply does it in the order of the fields.
type decision struct {
	// dead and live say whether the request counts as a live grant; neither leaves
	// that as it is.
	dead, live bool

	// unbind deletes the RoleBinding, with which access ends; late says that its time
	// is over.
	unbind, late bool
	// remove deletes the access Pod, evict evicts the Pod of exec access.
	remove, evict choice
	// unrecord deletes the Role. It goes last, because it records what there is to do.
	unrecord bool

	// complete writes into the request what its template says, which did not exist when
	// the request was made.
	complete bool
	// check names the check to ask about the request, "" for none.
	check string
	// grant gives the Pod what it lacks, if it is not nil.
	grant *grant

	// status is what the request says then; nil leaves it as it is.
	status *state
	// discard deletes the request, which has been kept long enough.
	discard bool

	// waits says that the request waits for something that is not watched.
	waits bool
	// behind says that the cache has yet to learn of what was done.
	behind bool
	// next is when to look at the request again.
	next schedule
}

// grant is what a request gets.
type grant struct {
	// pod is the access Pod to make, or the Pod that was chosen for exec access; nil
	// if role records it already.
	pod *corev1.Pod
	// role is the role that was asked for.
	role choice
	// template is what allows it.
	template v1alpha1.Template
}

// schedule is a moment, and the priority in the queue at that moment; the zero value
// is never.
type schedule struct {
	at       time.Time
	priority int
}

// cleanupDelay keeps the clean-up out of the way of others' ends. Creation times
// are whole seconds and durations mostly are, so that access ends at whole seconds;
// half a second later there is time for the rest.
const cleanupDelay = 500 * time.Millisecond

// next is when a request is looked at again if nothing happens to it: at the very
// moment at which its access ends, and when it has been kept long enough.
func (f *facts) next(now time.Time) schedule {
	switch f.stage(now) {
	case gone, invalid:
		return schedule{}
	case over:
		if f.mayBeBound() {
			return schedule{now.Add(cleanupDelay), controller.PriorityCleanup}
		}
		return schedule{f.keepUntil, controller.PriorityCleanup}
	case granted:
		if at, warns := v1alpha1.WarnAt(f.request, f.warnBefore); warns && now.Before(at) {
			return schedule{at: at}
		}
	case asking:
		if late := waitsUntil(f.request); f.template == nil && f.closed == nil && now.Before(late) && late.Before(f.end) {
			return schedule{at: late}
		}
	}
	return schedule{f.end, controller.PriorityEnd}
}

// decide decides what to do about a request. It reads nothing and changes nothing.
func decide(f *facts, now time.Time) decision {
	d := f.decide(now)
	d.next = f.next(now)
	return d
}

func (f *facts) decide(now time.Time) decision {
	switch f.stage(now) {
	case gone:
		return f.sweep()
	case invalid:
		d := f.sweep()
		d.status = newState(f.request, time.Time{})
		d.status.refused(refuse(v1alpha1.ReasonDurationInvalid, "%v", f.invalid).about(v1alpha1.ConditionAccessDurationsValid))
		return d
	case over:
		if f.mayBeBound() {
			return decision{unbind: true, late: true, remove: f.made}
		}
		return f.finish(now)
	case stale:
		d := f.sweep()
		d.behind = true
		return d
	case used:
		d := decision{dead: true, unbind: f.binding != nil, status: newState(f.request, f.end)}
		d.status.used()
		return d
	case asking:
		return f.ask(now)
	}
	if f.templateGone {
		return f.recall(now, templateDeleted)
	}
	if f.binding == nil && (f.approvalIsMissing() || f.checkIsMissing()) {
		return decision{dead: true, unbind: true, unrecord: true, waits: true} // the next attempt asks for it
	}
	d := f.keep()
	if d.live {
		f.announce(d.status, now)
	}
	return d
}

// ask decides about a request that has nothing yet.
func (f *facts) ask(now time.Time) decision {
	switch {
	case f.templateGone && f.settled() != (choice{}):
		return f.recall(now, templateDeleted)
	case f.templateLate():
		return f.recall(now, notInTime())
	case f.isOfAnother():
		return f.recall(now, templateReplaced)
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
func (f *facts) announce(s *state, now time.Time) {
	at, warns := v1alpha1.WarnAt(f.request, f.warnBefore)
	if warns && !now.Before(at) && (s.EndAnnounced == nil || s.EndAnnounced.Unix() != f.end.Unix()) {
		s.EndAnnounced = &metav1.Time{Time: f.end}
	}
}

// recall ends access because its template was deleted, which whoever may do that relies
// on in an emergency, or has not come. A template that is made again does not give it back.
func (f *facts) recall(now time.Time, why string) decision {
	d := decision{dead: true, unbind: f.binding != nil, status: newState(f.request, f.end)}
	d.status.RevokedAt = &metav1.Time{Time: now}
	d.status.withoutTemplate(why)
	return d
}

const (
	templateReplaced = "the template was replaced by another of its name after the request was made; make another request"
	templateDeleted  = "the template was deleted, and with it the access that it gave; make another request"
)

func notInTime() string {
	return fmt.Sprintf("the template did not come within %s of the request; make another request", v1alpha1.TemplateWait)
}

// sweep takes away all that there is.
func (f *facts) sweep() decision {
	return decision{dead: true, unbind: f.binding != nil, remove: f.made, evict: f.evicted(), unrecord: f.role != nil}
}

// evicted returns the Pod to evict when access ends, if the record asks for it, or, where
// somebody has deleted that, the template.
func (f *facts) evicted() choice {
	switch {
	case f.kind.makesPod, f.kind.givesRole:
	case f.role == nil:
		if f.template != nil && f.template.GetAccessConfig().OnExpiry == v1alpha1.ExpiryEvict {
			return f.settled()
		}
	case f.role.Annotations[AnnotationOnExpiry] == string(v1alpha1.ExpiryEvict):
		return choiceOf(f.role)
	}
	return choice{}
}

// finish cleans up after the end, when the RoleBinding is gone. Until the request
// says that its access has ended, the Role is deleted by its name even if the cache
// has none; see mayBeBound.
func (f *facts) finish(now time.Time) decision {
	first := !ended(f.request)
	d := decision{
		dead: true, remove: f.made, evict: f.evicted(), unrecord: first || f.role != nil,
		status: newState(f.request, f.end), discard: !now.Before(f.keepUntil),
	}
	d.status.ended(f.end, now, f.request.GetRequestSpec().Revoked)
	if f.waitsForApproval() {
		valid := d.status.wanted[v1alpha1.ConditionAccessStillValid]
		reason, message := valid.Reason, valid.Message
		if !f.wasRevoked() {
			reason = v1alpha1.ReasonTimedOut
			message = "not approved in time: it had " + f.request.GetRequestSpec().Approval.Count(len(d.status.Verdicts)) + " at " + f.end.UTC().Format(time.RFC3339) + "; make another request"
		}
		d.status.neverApproved(reason, message)
	}
	f.neverChecked(d.status)
	if f.request.GetRequestSpec().Duration == "" && !f.wasRevoked() {
		d.status.withoutTemplate(notInTime())
	}
	return d
}

// wasRevoked reports whether a request was revoked, whoever did that.
func (f *facts) wasRevoked() bool {
	return f.request.GetRequestSpec().Revoked != nil || f.request.GetRequestStatus().RevokedAt != nil
}

// answer grants what a request asks for, or says why not.
func (f *facts) answer() decision {
	d := decision{status: newState(f.request, f.end)}
	d.status.approval(f.request)
	if f.waitsForApproval() {
		d.status.ExpiresAt, d.status.Verdicts = nil, f.verdicts()
	}
	d.status.checked(f.request.GetRequestStatus().Check)
	if f.template != nil && f.template.GetAccessConfig().Check != "" && f.request.GetRequestStatus().Check == nil {
		d.status.ExpiresAt = nil // it may say another
	}
	if f.closed == nil && f.template != nil && f.incomplete() {
		return decision{complete: true}
	}
	var pod *corev1.Pod
	for _, check := range []struct {
		condition, reason string // what holds if the check refuses nothing
		refuses           func() *refusal
	}{
		{"", "", func() *refusal { return f.closed }},
		{v1alpha1.ConditionTargetTemplateExists, "Found", f.noTemplate},
		{v1alpha1.ConditionAccessDurationsValid, "Valid", func() *refusal { return allows(f.template, f.request.GetRequestSpec()) }},
		{"", "", f.unenforced},
		{"", "", f.unapproved},
		{"", "", f.tooMany},
		{"", "", f.unavailable},
		{"", "", f.unheld},
		{"", "", func() *refusal { return f.unended }},
		{"", "", func() (refused *refusal) { pod, refused = f.pod(); return refused }},
		{"", "", f.unchecked}, // last, so that its answer is about what is otherwise granted now
	} {
		if refused := check.refuses(); refused != nil {
			d.status.refused(refused)
			d.waits, d.check = refused.waits, refused.check
			return d
		}
		if check.condition != "" {
			d.status.set(check.condition, true, check.reason, "")
		}
	}
	d.grant = &grant{pod: pod, role: f.newRole, template: f.template}
	return d
}

func (f *facts) noTemplate() *refusal {
	if f.template != nil {
		return nil
	}
	refused := f.kind.noTemplate(f.key.Namespace, f.request.GetRequestSpec().TemplateName)
	refused.message += f.kind.waits(f.request.GetCreationTimestamp().Time)
	return refused.about(v1alpha1.ConditionTargetTemplateExists)
}

// unenforced refuses a single use that nothing would enforce. Admission does that, too,
// but not while the template is yet to come.
func (f *facts) unenforced() *refusal {
	if f.request.GetRequestSpec().SingleUse && !f.enforced {
		return refuseSingleUse()
	}
	return nil
}

// unavailable says why there is no Pod or role to give access to for now. Once there was one,
// no other is chosen.
func (f *facts) unavailable() *refusal {
	if f.kind.givesRole {
		return f.noRole
	}
	refused, settled := noTarget(f.noTarget), f.settled()
	switch {
	case settled == choice{}:
	case refused != nil && refused.reason == v1alpha1.ReasonUnknownPod:
		return lostPod(settled.name, podGone)
	case f.chosen != nil && f.chosen.UID != settled.uid:
		return lostPod(settled.name, podReplaced)
	}
	return refused
}

func (f *facts) tooMany() *refusal {
	if refused := tooMany(f.template, f.request.GetRequestSpec(), f.othersOpen); refused != nil {
		return refused.forNow()
	}
	return nil
}

// pod returns the Pod that access will be to: the one that was chosen, or one to be
// made, nil if it is to a role. Anything wrong with the access command is found before there is a Pod, which
// nobody could use.
func (f *facts) pod() (*corev1.Pod, *refusal) {
	if f.kind.givesRole {
		return nil, nil
	}
	t, ok := f.template.(*v1alpha1.PodAccessTemplate)
	if !ok {
		_, refused := commandFor(f.template, &f.chosen.ObjectMeta)
		return f.chosen, refused
	}
	limit, err := maxDuration(&t.Spec.AccessConfig)
	if err != nil {
		return nil, refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err).forNow()
	}
	meta := f.kind.meta(f.request)
	meta.OwnerReferences = []metav1.OwnerReference{f.kind.ownedBy(f.request)}
	if f.hold != nil && f.hold.Policy != "" {
		meta.Labels[v1alpha1.LabelEgress] = string(f.request.GetUID())
	}
	made, err := pod.New(meta, t, f.target, limit)
	if err == nil && f.hold != nil {
		err = fitsEgress(f.egressOptions, t, made)
	}
	if err != nil {
		return nil, refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.Name, err).forNow()
	}
	if _, refused := commandFor(t, &made.ObjectMeta); refused != nil {
		return nil, refused.forNow()
	}
	return made, nil
}

// keep keeps what was granted, and completes it. When the Pod is lost another is not
// chosen, and the RoleBinding, which the Pod owned, is not made again. One that the
// Pod does not own any more goes, and one that says something else than was granted; the
// next attempt finds out why, and makes another if it is to be.
func (f *facts) keep() decision {
	lost := f.loss()
	if lost == nil && (f.disowned() || f.drifted()) {
		return decision{dead: true, unbind: true}
	}
	d := decision{status: newState(f.request, f.end)}
	d.status.choose(choiceOf(f.role))
	if lost != nil {
		d.dead, d.unbind, d.waits = true, f.binding != nil, lost.waits
		d.status.refused(lost)
		return d
	}
	if f.binding != nil {
		d.live = true
		d.status.grantedAt(f.binding.CreationTimestamp)
	} else {
		d.grant = &grant{}
	}
	d.status.granted(f.role.Annotations[annotationMessage])
	d.status.observed(f.kind, f.own)
	d.status.held(f, f.request.GetRequestStatus().Egress)
	return d
}

// loss says why a grant ends before its time: its Pod, or its role, is lost.
func (f *facts) loss() *refusal {
	switch {
	case f.noRole != nil:
		return f.noRole
	case f.lost != "":
		return lostPod(choiceOf(f.role).name, f.lost)
	case f.unended != nil:
		return f.unended
	}
	return nil
}

// revocation returns the status of a request that is revoked now, nil if it was
// revoked before, and whether its access was live until now.
func revocation(req v1alpha1.Request, now time.Time) (revoked *state, live bool) {
	if req.GetRequestStatus().RevokedAt != nil {
		return nil, false
	}
	revoked = &state{RequestStatus: *req.GetRequestStatus().DeepCopy()}
	live = !v1alpha1.Over(req, now)
	if live {
		revoked = newState(req, now)
	}
	revoked.RevokedAt = &metav1.Time{Time: now}
	if live {
		revoked.ended(now, now, nil)
		revoked.settle()
	}
	return revoked, live
}
