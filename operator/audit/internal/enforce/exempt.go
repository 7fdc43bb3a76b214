package enforce

import (
	"fmt"
	"slices"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
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
	return fmt.Sprintf("request.userInfo.username in %s || (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in %s))",
		act.List(o.ExemptUsers), act.List(o.ExemptGroups))
}
