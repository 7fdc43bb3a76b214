package audit

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// exemption says by what a user is exempt from enforcement (break-glass), or
// nothing.
func (e *Enforcement) exemption(user *v1alpha1.AuditUser) string {
	if slices.Contains(e.ExemptUsers, user.Username) {
		return fmt.Sprintf("user %q", user.Username)
	}
	for _, group := range e.ExemptGroups {
		if slices.Contains(user.Groups, group) {
			return fmt.Sprintf("group %q", group)
		}
	}
	return ""
}

// hasExempt reports whether anybody is exempt.
func (e *Enforcement) hasExempt() bool { return len(e.ExemptUsers)+len(e.ExemptGroups) > 0 }

// exemptExpression is the CEL expression that holds for exempt users. They have
// a webhook entry of their own: break-glass that fails while the webhook is
// down would be none.
func (e *Enforcement) exemptExpression() string {
	list := func(names []string) string {
		if names == nil {
			names = []string{}
		}
		text, _ := json.Marshal(names) // a JSON array of strings is one of CEL, too
		return string(text)
	}
	return fmt.Sprintf("request.userInfo.username in %s || (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in %s))",
		list(e.ExemptUsers), list(e.ExemptGroups))
}
