package grant

import (
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Ended reports whether a request says that its access has ended. Others may have
// written that: use it only to save work.
func Ended(req v1alpha1.Request) bool {
	return meta.IsStatusConditionFalse(req.GetRequestStatus().Conditions, v1alpha1.ConditionAccessStillValid)
}

// WasGranted reports whether a request says that it has got what it asks for.
func WasGranted(req v1alpha1.Request) bool {
	return meta.IsStatusConditionTrue(req.GetRequestStatus().Conditions, v1alpha1.ConditionAccessResourcesCreated)
}

// GotSomething reports whether a request says that it was given a Pod or a role.
func GotSomething(req v1alpha1.Request) bool { return ChosenIn(req.GetRequestStatus()) != Choice{} }

// IsOpen reports whether a request gives access, or waits to, or has a Pod, as long
// as its time is not over.
func (k Kind) IsOpen(req v1alpha1.Request) bool {
	used := req.GetRequestStatus().UsedBy != nil
	return req.GetDeletionTimestamp().IsZero() && (!used || k.MakesPod)
}

// Waits says how long a request made at created waits for its template.
func (k Kind) Waits(created time.Time) string {
	return fmt.Sprintf(": the request waits for it until %s, and is then decided by it like any other", created.Add(v1alpha1.TemplateWait).UTC().Format(time.RFC3339))
}

// WaitsUntil is how long a request waits for its template.
func WaitsUntil(req v1alpha1.Request) time.Time {
	return req.GetCreationTimestamp().Add(v1alpha1.TemplateWait)
}

// unusedFor is how much of its time counts for a request that was revoked before it got a Pod,
// because no template may have limited that.
const unusedFor = 24 * time.Hour

// KeepUntil returns how long a request is kept: from when its time is over, and not
// from when it was revoked: else those who may write the status could make the record go at
// once. Of the time of a request that got nothing only [unusedFor] counts.
func KeepUntil(req v1alpha1.Request, retention time.Duration) time.Time {
	end, _ := v1alpha1.TermOf(req) // one that is invalid is not discarded
	if unused := req.GetCreationTimestamp().Add(unusedFor); !GotSomething(req) && unused.Before(end) {
		if end, _ = v1alpha1.EndOf(req); end.Before(unused) {
			end = unused
		}
	}
	return end.Add(retention)
}

// IsParty reports whether a request is a user's: they made it, or it was made for them.
func IsParty(spec *v1alpha1.RequestSpec, user authenticationv1.UserInfo) bool {
	return IsRequester(spec.Requester, user) || spec.OnBehalfOf != "" && spec.OnBehalfOf == user.Username
}

// IsRequester reports whether a user made a request. Two users who had the same name
// at different times are told apart where both have a UID.
func IsRequester(who *v1alpha1.Requester, user authenticationv1.UserInfo) bool {
	return who != nil && who.Username == user.Username && (who.UID == "" || user.UID == "" || who.UID == user.UID)
}

// Users are those for whom a request counts: who asks, and who is asked for.
func Users(spec *v1alpha1.RequestSpec) (names []string) {
	if spec.Requester != nil {
		names = append(names, spec.Requester.Username)
	}
	if spec.OnBehalfOf != "" {
		names = append(names, spec.OnBehalfOf)
	}
	return names
}
