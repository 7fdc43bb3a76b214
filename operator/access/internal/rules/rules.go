package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Allows checks a request against a template, when it is admitted and again when it
// is granted.
func Allows(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *Refusal {
	config, who := t.GetAccessConfig(), spec.Requester
	if who == nil || who.Username == "" {
		return Refuse(v1alpha1.ReasonRequesterUnknown, "spec.requester is empty: the request did not pass admission")
	}
	if spec.OnBehalfOf != "" {
		if refused := allowsFor(t, spec); refused != nil {
			return refused
		}
	} else if !isOneOf(who, config.AllowedUsers, config.AllowedGroups) {
		return Refuse(v1alpha1.ReasonNotAllowed, "user %q is not allowed by template %q, which allows the groups %q and the users %q",
			who.Username, t.GetName(), config.AllowedGroups, config.AllowedUsers)
	}
	if refused := allowsDuration(t, spec); refused != nil {
		return refused.About(v1alpha1.ConditionAccessDurationsValid)
	}
	if config.RequireReason && strings.TrimSpace(spec.Reason) == "" {
		return Refuse(v1alpha1.ReasonMissing, "template %q requires spec.reason", t.GetName())
	}
	if config.SingleUse && !spec.SingleUse {
		return Refuse(v1alpha1.ReasonSingleUse, "template %q requires spec.singleUse", t.GetName())
	}
	return allowsApproval(t, spec)
}

func isOneOf(who *v1alpha1.Requester, users, groups []string) bool {
	return slices.Contains(users, who.Username) ||
		slices.ContainsFunc(who.Groups, func(group string) bool { return slices.Contains(groups, group) })
}

// allowsFor checks a request for somebody else. The one who asks must be allowed to, and
// the one who gets access must be allowed by name: only the groups of who asks are known.
func allowsFor(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *Refusal {
	if refused := CanBeAskedFor(spec); refused != nil {
		return refused
	}
	config, who := t.GetAccessConfig(), spec.Requester
	switch {
	case config.AskFor == nil:
		return Refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: template %q lets nobody ask for others, which its spec.accessConfig.askFor would; leave spec.onBehalfOf out to ask for yourself", t.GetName())
	case !isOneOf(who, config.AskFor.Users, config.AskFor.Groups):
		return Refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: user %q may not ask for others by template %q, whose spec.accessConfig.askFor has the groups %q and the users %q",
			who.Username, t.GetName(), config.AskFor.Groups, config.AskFor.Users)
	case config.Subjects == v1alpha1.SubjectsGroups:
		return Refuse(v1alpha1.ReasonTemplateInvalid, "spec.onBehalfOf: template %q gives access to groups, and not to one user", t.GetName())
	case !slices.Contains(config.AllowedUsers, spec.OnBehalfOf):
		return Refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: user %q is not one of the allowedUsers %q of template %q; allowedGroups do not count, because the server does not know the groups of a user who does not ask",
			spec.OnBehalfOf, config.AllowedUsers, t.GetName())
	}
	return nil
}

// CanBeAskedFor refuses names that nobody may ask for, whatever a template says: those of
// the system, with ServiceAccounts, do not ask for access by a chat.
func CanBeAskedFor(spec *v1alpha1.RequestSpec) *Refusal {
	switch {
	case spec.OnBehalfOf == "":
		return nil
	case strings.HasPrefix(spec.OnBehalfOf, "system:"):
		return Refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: %q is a user of the system, for whom nobody can ask; name a person", spec.OnBehalfOf)
	case spec.Requester != nil && spec.OnBehalfOf == spec.Requester.Username:
		return Refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: %q is who asks; leave it out to ask for yourself", spec.OnBehalfOf)
	}
	return nil
}

// RefuseSingleUse refuses a single use where nothing would limit it to that.
func RefuseSingleUse() *Refusal {
	return Refuse(v1alpha1.ReasonSingleUse, "spec.singleUse needs the enforcement of the audit extension, which does not run here: "+
		"use a template that does not require it")
}

func allowsDuration(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *Refusal {
	config := t.GetAccessConfig()
	limit, err := MaxDuration(config)
	if err != nil {
		return Refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.GetName(), err)
	}
	duration, refused := DurationOf(spec)
	if refused != nil {
		return refused
	}
	if duration > limit {
		return Refuse(v1alpha1.ReasonDurationTooLong, "spec.duration: %s exceeds the maximum of template %q, %s", spec.Duration, t.GetName(), config.MaxDuration)
	}
	return nil
}

// DurationOf returns how long a request asks for, or why that is no duration.
func DurationOf(spec *v1alpha1.RequestSpec) (time.Duration, *Refusal) {
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil {
		return 0, Refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q is not a duration such as 90m or 1h30m; hours are the largest unit", spec.Duration)
	}
	if duration <= 0 {
		return 0, Refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %s must be more than 0; leave it out for the template's default", spec.Duration)
	}
	return duration, nil
}

// MaxDuration returns the longest duration that a template allows, if both of
// its durations are valid.
func MaxDuration(config *v1alpha1.AccessConfig) (time.Duration, error) {
	standard, err := time.ParseDuration(config.DefaultDuration)
	if err != nil {
		return 0, fmt.Errorf("spec.accessConfig.defaultDuration: %w", err)
	}
	limit, err := time.ParseDuration(config.MaxDuration)
	if err != nil {
		return 0, fmt.Errorf("spec.accessConfig.maxDuration: %w", err)
	}
	if standard <= 0 {
		return 0, fmt.Errorf("spec.accessConfig.defaultDuration: %s: must be positive", config.DefaultDuration)
	}
	if standard > limit {
		return 0, fmt.Errorf("spec.accessConfig.defaultDuration: %s exceeds maxDuration, %s", config.DefaultDuration, config.MaxDuration)
	}
	return limit, nil
}
