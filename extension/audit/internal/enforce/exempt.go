package enforce

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// exemption names what exempts a user (break-glass), or returns nothing.
func (o *Options) exemption(user *v1alpha1.AuditUser) string {
	if slices.Contains(o.ExemptUsers, user.Username) {
		return fmt.Sprintf("user %q", user.Username)
	}
	for _, group := range o.ExemptGroups {
		if slices.Contains(user.Groups, group) {
			return fmt.Sprintf("group %q", group)
		}
	}
	return ""
}

// hasExempt reports whether anybody is exempt.
func (o *Options) hasExempt() bool { return len(o.ExemptUsers)+len(o.ExemptGroups) > 0 }

// exemptExpression is the CEL expression that holds for exempt users. They have
// a webhook entry of their own, because break-glass must work while the webhook
// is down.
func (o *Options) exemptExpression() string {
	list := func(names []string) string {
		if names == nil {
			names = []string{}
		}
		text, _ := json.Marshal(names) // a JSON array of strings is valid CEL
		return string(text)
	}
	return fmt.Sprintf("request.userInfo.username in %s || (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in %s))",
		list(o.ExemptUsers), list(o.ExemptGroups))
}
