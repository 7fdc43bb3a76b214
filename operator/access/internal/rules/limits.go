package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// TooMany refuses a request of a user, or for one, who has as many others open as the
// template allows.
func TooMany(t v1alpha1.Template, spec *v1alpha1.RequestSpec, open []v1alpha1.Request) *Refusal {
	for _, user := range grant.Users(spec) {
		of := slices.DeleteFunc(slices.Clone(open), func(other v1alpha1.Request) bool { return !countsFor(t, other, user) })
		if refused := tooManyOf(t, user, of); refused != nil {
			return refused
		}
	}
	return nil
}

// countsFor reports whether an open request counts for a user: one of their own does, and one
// on their behalf if the template allows it, or did. Anybody may ask on behalf of anybody
// while the template is yet to come.
func countsFor(t v1alpha1.Template, req v1alpha1.Request, user string) bool {
	spec := req.GetRequestSpec()
	if spec.Requester != nil && spec.Requester.Username == user {
		return true
	}
	return spec.OnBehalfOf == user && (grant.WasGranted(req) || grant.GotSomething(req) || Allows(t, spec) == nil)
}

func tooManyOf(t v1alpha1.Template, user string, open []v1alpha1.Request) *Refusal {
	limit := int(t.GetAccessConfig().MaxConcurrent)
	if limit == 0 {
		limit = defaultMaxConcurrent
	}
	if len(open) < limit {
		return nil
	}
	const enough = 5
	names := make([]string, 0, enough+1)
	for _, req := range open[:min(len(open), enough)] {
		end, _ := v1alpha1.EndOf(req) // one that is open has an end
		names = append(names, req.GetName()+" until "+end.UTC().Format(time.RFC3339))
	}
	if more := len(open) - enough; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return Refuse(v1alpha1.ReasonTooMany, "template %q allows a user %d open requests, and %q has %d: %s; "+
		"wait, or end one with kubectl access revoke NAME, which sets its spec.revoked", t.GetName(), limit, user, len(open), strings.Join(names, ", "))
}

// defaultMaxConcurrent is the CRD's default.
const defaultMaxConcurrent = 5
