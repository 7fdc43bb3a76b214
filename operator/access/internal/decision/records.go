package decision

import (
	"cmp"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Records returns the records of a decision, in the order in which it happened.
func Records(about *facts.Facts, d Decision) (records []extension.Record) {
	f := decider{about}
	if f.Request != nil {
		records = f.asked()
	}
	switch {
	case f.Role != nil && d.Unrecord:
		records = append(records, f.endOf(f.Role, d))
	case f.Request == nil && f.LastRole != nil:
		records = append(records, f.endOf(f.LastRole, d))
	}
	if f.Request == nil || d.Status == nil {
		return records
	}
	records = append(records, f.decided(d.Status)...)
	valid, used := d.Status.Wanted[v1alpha1.ConditionAccessStillValid], d.Status.UsedBy
	switch {
	case valid.Status == metav1.ConditionFalse:
		if f.Role == nil && grant.WasGranted(f.Request) && !grant.Ended(f.Request) {
			records = append(records, f.Kind.About(f.Request, grant.ActionEnded, "%s", valid.Message))
		}
	case grant.WasGranted(f.Request) && d.Status.Lost():
		records = append(records, f.Kind.About(f.Request, grant.ActionEnded, "%s", d.Status.Wanted[v1alpha1.ConditionAccessResourcesCreated].Message))
	case f.Request.GetRequestStatus().Ready && used != nil:
		records = append(records, f.Kind.About(f.Request, grant.ActionUsed, "%s used the request up with %s", used.Username, used.Verb))
	default:
		records = append(records, f.moved(d.Status)...)
	}
	return records
}

// asked tells what users ask for: access, and that it is revoked.
func (f decider) asked() (records []extension.Record) {
	spec := f.Request.GetRequestSpec()
	if len(f.Request.GetRequestStatus().Conditions) == 0 {
		records = append(records, f.Kind.About(f.Request, grant.ActionAsked, "%s", grant.Asks(spec)))
	}
	if by := spec.Revoked; by != nil && !grant.Ended(f.Request) {
		revoked := f.Kind.About(f.Request, grant.ActionRevoked, "%s revokes the request of %s: %s", by.By, grant.RequesterOf(f.Request), grant.Said(by.Reason))
		revoked.User = authenticationv1.UserInfo{Username: by.By}
		records = append(records, revoked)
	}
	return records
}

// decided tells who approved or denied the request, and that nobody did in time.
func (f decider) decided(s *Status) (records []extension.Record) {
	for _, v := range NewVerdicts(f.Request.GetRequestStatus().Verdicts, s.Verdicts) {
		action, word := grant.ActionApproved, "approves"
		if v.Decision == v1alpha1.DecisionDeny {
			action, word = grant.ActionDenied, "denies"
		}
		record := f.Kind.About(f.Request, action, "%s %s the request of %s: %s", v.Username, word, grant.RequesterOf(f.Request), grant.Said(v.Reason))
		record.ID += "-" + grant.ShortHash(v.Username)
		record.User, record.Denied = authenticationv1.UserInfo{Username: v.Username}, v.Decision == v1alpha1.DecisionDeny
		records = append(records, record)
	}
	for _, condition := range []string{v1alpha1.ConditionApproved, v1alpha1.ConditionChecked} {
		if c := s.Wanted[condition]; c.Reason == v1alpha1.ReasonTimedOut && !grant.Ended(f.Request) {
			record := f.Kind.About(f.Request, grant.ActionTimedOut, "%s", c.Message)
			record.Denied = true
			records = append(records, record)
		}
	}
	return append(records, f.checkedNow(s)...)
}

// checkedNow tells what the check of the request has answered.
func (f decider) checkedNow(s *Status) []extension.Record {
	c := s.Wanted[v1alpha1.ConditionChecked]
	denied := c.Reason == v1alpha1.ReasonDenied
	if grant.Ended(f.Request) || !denied && (c.Status != metav1.ConditionTrue || meta.IsStatusConditionTrue(f.Request.GetRequestStatus().Conditions, c.Type)) {
		return nil
	}
	action := grant.ActionChecked
	if denied {
		action = grant.ActionDenied
	}
	record := f.Kind.About(f.Request, action, "the request of %s was %s", grant.RequesterOf(f.Request), c.Message)
	record.User, record.Denied = authenticationv1.UserInfo{}, denied
	return []extension.Record{record}
}

// moved tells that the end of access is another than before.
func (f decider) moved(s *Status) []extension.Record {
	before := f.Request.GetRequestStatus().ExpiresAt
	if before != nil && before.Time.Equal(f.LastMove.From) {
		// It was told, and the request changed before the status could say so.
		before = &metav1.Time{Time: f.LastMove.To}
	}
	if before == nil || s.ExpiresAt == nil || before.Equal(s.ExpiresAt) {
		return nil
	}
	moved := f.Kind.About(f.Request, grant.ActionMoved, "access ends at %s, not at %s", s.ExpiresAt.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))
	moved.ID += fmt.Sprintf("-%d", f.Request.GetGeneration()) // the end may move to and fro
	return []extension.Record{moved}
}

// endOf returns the record of the end of a grant, which the Role tells if the request no
// longer does.
func (f decider) endOf(role *rbacv1.Role, d Decision) extension.Record {
	of, err := v1alpha1.GrantOf(role)
	if err != nil {
		of = &v1alpha1.Grant{Kind: f.Kind.RequestKind, Request: f.Key, RequestUID: types.UID(role.Annotations[grant.AnnotationRequestUID])}
		of.Subjects, _ = grant.RecordedSubjects(role) // without them the record is about nobody
	}
	record := extension.Record{
		ID: string(of.RequestUID) + "-" + grant.ActionEnded, Action: grant.ActionEnded, Reason: "access ended: the request is gone or was changed",
		Object: corev1.ObjectReference{Kind: f.Kind.RequestKind, Namespace: f.Key.Namespace, Name: f.Key.Name, UID: of.RequestUID},
		Pod:    corev1.ObjectReference{Name: of.PodName, UID: of.PodUID},
	}
	for _, subject := range of.Subjects {
		if subject.Kind == rbacv1.UserKind {
			record.User.Username = subject.Name
		}
	}
	if d.Status != nil {
		record.Reason = cmp.Or(d.Status.Wanted[v1alpha1.ConditionAccessStillValid].Message, record.Reason)
	}
	return record
}

// GrantRecord returns the record of a grant that is about to be made.
func GrantRecord(f *facts.Facts, to grant.Choice) extension.Record {
	spec := f.Request.GetRequestSpec()
	record := f.Kind.About(f.Request, grant.ActionGranted, "%s may access %s until %s by template %s%s%s",
		spec.Grantee(), to, f.End.UTC().Format(time.RFC3339), spec.TemplateName, grant.AskedBy(spec), grant.WithoutApproval(spec))
	if to.Role == "" {
		record.Pod = corev1.ObjectReference{Name: to.Name, UID: to.UID}
	}
	return record
}
