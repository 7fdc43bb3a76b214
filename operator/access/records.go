package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The actions of the records about a request; see [extension.Record]. It outlives the
// request. Each record is made before what it is about, so that nothing is granted
// without one where the recorder demands it, and once: its ID is the request's UID with
// the word.
const (
	actionAsked    = "asked"
	actionApproved = "approved"
	actionChecked  = "checked"
	actionDenied   = "denied"
	actionTimedOut = "timed-out"
	actionGranted  = "granted"
	actionMoved    = "end-moved"
	actionUsed     = "used"
	actionRevoked  = "revoked"
	actionEnded    = "ended"
	actionDeleted  = "deleted"
	actionRestored = "restored"
)

// about returns a record about a request.
func (k kind) about(req v1alpha1.Request, action, format string, args ...any) extension.Record {
	record := extension.Record{
		ID: string(req.GetUID()) + "-" + action, Action: action, Reason: fmt.Sprintf(format, args...),
		Object: corev1.ObjectReference{Kind: k.request, Namespace: req.GetNamespace(), Name: req.GetName(), UID: req.GetUID()},
	}
	if who := req.GetRequestSpec().Requester; who != nil {
		record.User = authenticationv1.UserInfo{Username: who.Username, UID: who.UID, Groups: who.Groups}
	}
	if other := req.GetRequestSpec().OnBehalfOf; other != "" && action != actionAsked {
		record.User = authenticationv1.UserInfo{Username: other} // whose access it is
	}
	if status := req.GetRequestStatus(); status.PodName != "" {
		record.Pod = corev1.ObjectReference{Name: status.PodName, UID: types.UID(status.PodUID)}
	}
	return record
}

// onBehalf and askedBy name the other one of a request on behalf of a user.
func onBehalf(spec *v1alpha1.RequestSpec) string {
	if spec.OnBehalfOf == "" {
		return ""
	}
	return " on behalf of " + spec.OnBehalfOf
}

func askedBy(spec *v1alpha1.RequestSpec) string {
	if spec.OnBehalfOf == "" || spec.Requester == nil {
		return ""
	}
	return ", as asked by " + spec.Requester.Username
}

// toldRecords is how many records are known to have been made: an attempt that is made
// again and again would otherwise fill the log with the same.
const toldRecords = 10_000

// tellOnce makes a record, unless it was made before.
func (a *shared) tellOnce(ctx context.Context, record extension.Record) error {
	if _, told := a.told.Get(record.ID); told {
		return nil
	}
	if err := a.recorder.Record(ctx, record); err != nil {
		return fmt.Errorf("recording that %s %s/%s was %s: %w", record.Object.Kind, record.Object.Namespace, record.Object.Name, record.Action, err)
	}
	a.told.Add(record.ID, nil)
	return nil
}

// tell records what a decision adds to the records, but for the grant itself, which
// [requests.grant] records.
func (r *requests) tell(ctx context.Context, f *facts, d decision) error {
	if r.recorder == nil {
		return nil // an uninstall
	}
	if f.request != nil {
		last, _ := r.told.Get(moveKey(f.request))
		f.lastMove, _ = last.(move)
	}
	for _, record := range f.records(d) {
		if err := r.tellOnce(ctx, record); err != nil {
			return err
		}
		if record.Action == actionMoved {
			r.told.Add(moveKey(f.request), move{f.request.GetRequestStatus().ExpiresAt.Time, d.status.ExpiresAt.Time})
		}
		if f.request == nil { // else the status says so
			r.notify([]step{stepOf(record)})
		}
	}
	return nil
}

// records returns the records of a decision, in the order in which it happened.
func (f *facts) records(d decision) (records []extension.Record) {
	if f.request != nil {
		records = f.asked()
	}
	switch {
	case f.role != nil && d.unrecord:
		records = append(records, f.ended(f.role, d))
	case f.request == nil && f.lastRole != nil:
		records = append(records, f.ended(f.lastRole, d))
	}
	if f.request == nil || d.status == nil {
		return records
	}
	records = append(records, f.decided(d.status)...)
	valid, used := d.status.wanted[v1alpha1.ConditionAccessStillValid], d.status.UsedBy
	switch {
	case valid.Status == metav1.ConditionFalse:
		if f.role == nil && wasGranted(f.request) && !ended(f.request) {
			records = append(records, f.kind.about(f.request, actionEnded, "%s", valid.Message))
		}
	case wasGranted(f.request) && d.status.lost():
		records = append(records, f.kind.about(f.request, actionEnded, "%s", d.status.wanted[v1alpha1.ConditionAccessResourcesCreated].Message))
	case f.request.GetRequestStatus().Ready && used != nil:
		records = append(records, f.kind.about(f.request, actionUsed, "%s used the request up with %s", used.Username, used.Verb))
	default:
		records = append(records, f.moved(d.status)...)
	}
	return records
}

// asked tells what users ask for: access, and that it is revoked.
func (f *facts) asked() (records []extension.Record) {
	spec := f.request.GetRequestSpec()
	if len(f.request.GetRequestStatus().Conditions) == 0 {
		records = append(records, f.kind.about(f.request, actionAsked, "%s", asks(spec)))
	}
	if by := spec.Revoked; by != nil && !ended(f.request) {
		revoked := f.kind.about(f.request, actionRevoked, "%s revokes the request of %s: %s", by.By, requesterOf(f.request), said(by.Reason))
		revoked.User = authenticationv1.UserInfo{Username: by.By}
		records = append(records, revoked)
	}
	return records
}

// asks says what a request asks for.
func asks(spec *v1alpha1.RequestSpec) string {
	return fmt.Sprintf("asks for access%s by template %s for %s: %s", onBehalf(spec), spec.TemplateName, cmp.Or(spec.Duration, "as long as it says"), said(spec.Reason))
}

// decided tells who approved or denied the request, and that nobody did in time.
func (f *facts) decided(s *state) (records []extension.Record) {
	for _, v := range newVerdicts(f.request.GetRequestStatus().Verdicts, s.Verdicts) {
		action, word := actionApproved, "approves"
		if v.Decision == v1alpha1.DecisionDeny {
			action, word = actionDenied, "denies"
		}
		record := f.kind.about(f.request, action, "%s %s the request of %s: %s", v.Username, word, requesterOf(f.request), said(v.Reason))
		record.ID += "-" + shortHash(v.Username)
		record.User, record.Denied = authenticationv1.UserInfo{Username: v.Username}, v.Decision == v1alpha1.DecisionDeny
		records = append(records, record)
	}
	for _, condition := range []string{v1alpha1.ConditionApproved, v1alpha1.ConditionChecked} {
		if c := s.wanted[condition]; c.Reason == v1alpha1.ReasonTimedOut && !ended(f.request) {
			record := f.kind.about(f.request, actionTimedOut, "%s", c.Message)
			record.Denied = true
			records = append(records, record)
		}
	}
	return append(records, f.checkedNow(s)...)
}

// checkedNow tells what the check of the request has answered.
func (f *facts) checkedNow(s *state) []extension.Record {
	c := s.wanted[v1alpha1.ConditionChecked]
	denied := c.Reason == v1alpha1.ReasonDenied
	if ended(f.request) || !denied && (c.Status != metav1.ConditionTrue || meta.IsStatusConditionTrue(f.request.GetRequestStatus().Conditions, c.Type)) {
		return nil
	}
	action := actionChecked
	if denied {
		action = actionDenied
	}
	record := f.kind.about(f.request, action, "the request of %s was %s", requesterOf(f.request), c.Message)
	record.User, record.Denied = authenticationv1.UserInfo{}, denied
	return []extension.Record{record}
}

// move is a move of the end of access that was told.
type move struct{ from, to time.Time }

// moveKey is where the last move of a request is kept among what was told.
func moveKey(req v1alpha1.Request) string { return string(req.GetUID()) + "-last-move" }

// moved tells that the end of access is another than before.
func (f *facts) moved(s *state) []extension.Record {
	before := f.request.GetRequestStatus().ExpiresAt
	if before != nil && before.Time.Equal(f.lastMove.from) {
		// It was told, and the request changed before the status could say so.
		before = &metav1.Time{Time: f.lastMove.to}
	}
	if before == nil || s.ExpiresAt == nil || before.Equal(s.ExpiresAt) {
		return nil
	}
	moved := f.kind.about(f.request, actionMoved, "access ends at %s, not at %s", s.ExpiresAt.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))
	moved.ID += fmt.Sprintf("-%d", f.request.GetGeneration()) // the end may move to and fro
	return []extension.Record{moved}
}

// ended returns the record of the end of a grant, which the Role tells if the request no
// longer does.
func (f *facts) ended(role *rbacv1.Role, d decision) extension.Record {
	grant, err := v1alpha1.GrantOf(role)
	if err != nil {
		grant = &v1alpha1.Grant{Kind: f.kind.request, Request: f.key, RequestUID: types.UID(role.Annotations[AnnotationRequestUID])}
		grant.Subjects, _ = recordedSubjects(role) // without them the record is about nobody
	}
	record := extension.Record{
		ID: string(grant.RequestUID) + "-" + actionEnded, Action: actionEnded, Reason: "access ended: the request is gone or was changed",
		Object: corev1.ObjectReference{Kind: f.kind.request, Namespace: f.key.Namespace, Name: f.key.Name, UID: grant.RequestUID},
		Pod:    corev1.ObjectReference{Name: grant.PodName, UID: grant.PodUID},
	}
	for _, subject := range grant.Subjects {
		if subject.Kind == rbacv1.UserKind {
			record.User.Username = subject.Name
		}
	}
	if d.status != nil {
		record.Reason = cmp.Or(d.status.wanted[v1alpha1.ConditionAccessStillValid].Message, record.Reason)
	}
	return record
}

// granted returns the record of a grant that is about to be made.
func (f *facts) granted(to choice) extension.Record {
	spec := f.request.GetRequestSpec()
	record := f.kind.about(f.request, actionGranted, "%s may access %s until %s by template %s%s%s",
		spec.Grantee(), to, f.end.UTC().Format(time.RFC3339), spec.TemplateName, askedBy(spec), withoutApproval(spec))
	if to.role == "" {
		record.Pod = corev1.ObjectReference{Name: to.name, UID: to.uid}
	}
	return record
}

// deletions records who deletes a request. It refuses nothing: a deletion ends access.
type deletions struct{ *shared }

var _ extension.Validator[*unstructured.Unstructured] = (*deletions)(nil)

func (a *shared) deletionScope() extension.Scope {
	ignore := admissionregistrationv1.Ignore
	return extension.Scope{
		Name: "access-deletion", FailurePolicy: &ignore, NamespaceSelector: a.places.selector(),
		Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version,
			[]string{"podaccessrequests", "execaccessrequests", "roleaccessrequests"}, admissionregistrationv1.Delete),
	}
}

// Register connects to the cluster.
func (d *deletions) Register(mgr extension.Manager) error { return d.setup(mgr) }

// Validate records the deletion.
func (d *deletions) Validate(ctx context.Context, obj *unstructured.Unstructured, req *extension.Request) error {
	user := req.User()
	k, found := kindOfRequest(req.Kind.Kind)
	if !found {
		return nil // not by our scope
	}
	request := k.newRequest()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, request); err != nil {
		return err
	}
	if me, err := d.self.Reconciler(ctx); req.DryRun() || err == nil && user.Username == me {
		return nil // at the end of the retention nothing is lost
	}
	record := k.about(request, actionDeleted, "%s deletes the request of %s, which ends access", user.Username, requesterOf(request))
	if ended(request) {
		record.Reason = fmt.Sprintf("%s deletes the request of %s, whose access has ended", user.Username, requesterOf(request))
	}
	// The API server may ask again about the same deletion, with another UID.
	record.ID, record.User = record.ID+"-"+shortHash(user.Username), user
	if err := d.recorder.Record(ctx, record); err != nil {
		d.log.Error("a request is deleted without a record", zap.String("request", req.Namespace+"/"+req.Name), zap.String("user", user.Username), zap.Error(err))
	}
	return nil
}

// shortHash stands for a user's name in an ID.
func shortHash(username string) string {
	sum := sha256.Sum256([]byte(username))
	return hex.EncodeToString(sum[:8])
}

func requesterOf(req v1alpha1.Request) string {
	if who := req.GetRequestSpec().Requester; who != nil {
		return who.Username + onBehalf(req.GetRequestSpec())
	}
	return "nobody"
}
