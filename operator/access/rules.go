package access

import (
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// refusal is why a request is not granted.
type refusal struct {
	// reason is for conditions and metrics, message for people.
	reason, message string
	// condition does not hold, and so neither do those of the resources. Default:
	// those of the resources alone.
	condition string
	// waits says that what has to change is not watched, so that it must be looked
	// at again: it belongs to others, and a cache of it would grow with the cluster.
	waits bool
	// check names the check that must be asked.
	check string
	// quiet says that what is missing is probably on its way, and no warning is due.
	quiet bool
}

func (r *refusal) Error() string { return r.message }

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...)}
}

// lostPod refuses a request whose Pod no longer exists; another is not chosen.
func lostPod(pod, what string) *refusal {
	return refuse(v1alpha1.ReasonPodGone, "Pod %s %s; make another request", pod, what)
}

// about names the condition that does not hold.
func (r *refusal) about(condition string) *refusal {
	r.condition = condition
	return r
}

// forNow marks a refusal that must be looked at again.
func (r *refusal) forNow() *refusal {
	r.waits = true
	return r
}

// Reasons of refusals that no condition has. The metric of denials has these and
// those of conditions.
const (
	reasonChanged = "Changed"
	reasonEnded   = "Ended"

	reasonInvalidName = "InvalidName"
)

// maxDuration returns the longest duration that a template allows, if both of
// its durations are valid.
func maxDuration(config *v1alpha1.AccessConfig) (time.Duration, error) {
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

// allows checks a request against a template, when it is admitted and again when it
// is granted.
func allows(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *refusal {
	config, who := t.GetAccessConfig(), spec.Requester
	if who == nil || who.Username == "" {
		return refuse(v1alpha1.ReasonRequesterUnknown, "spec.requester is empty: the request did not pass admission")
	}
	if spec.OnBehalfOf != "" {
		if refused := allowsFor(t, spec); refused != nil {
			return refused
		}
	} else if !isOneOf(who, config.AllowedUsers, config.AllowedGroups) {
		return refuse(v1alpha1.ReasonNotAllowed, "user %q is not allowed by template %q, which allows the groups %q and the users %q",
			who.Username, t.GetName(), config.AllowedGroups, config.AllowedUsers)
	}
	if refused := allowsDuration(t, spec); refused != nil {
		return refused.about(v1alpha1.ConditionAccessDurationsValid)
	}
	if config.RequireReason && strings.TrimSpace(spec.Reason) == "" {
		return refuse(v1alpha1.ReasonMissing, "template %q requires spec.reason", t.GetName())
	}
	if config.SingleUse && !spec.SingleUse {
		return refuse(v1alpha1.ReasonSingleUse, "template %q requires spec.singleUse", t.GetName())
	}
	return allowsApproval(t, spec)
}

func isOneOf(who *v1alpha1.Requester, users, groups []string) bool {
	return slices.Contains(users, who.Username) ||
		slices.ContainsFunc(who.Groups, func(group string) bool { return slices.Contains(groups, group) })
}

// allowsFor checks a request for somebody else. The one who asks must be allowed to, and
// the one who gets access must be allowed by name: only the groups of who asks are known.
func allowsFor(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *refusal {
	if refused := canBeAskedFor(spec); refused != nil {
		return refused
	}
	config, who := t.GetAccessConfig(), spec.Requester
	switch {
	case config.AskFor == nil:
		return refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: template %q lets nobody ask for others, which its spec.accessConfig.askFor would; leave spec.onBehalfOf out to ask for yourself", t.GetName())
	case !isOneOf(who, config.AskFor.Users, config.AskFor.Groups):
		return refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: user %q may not ask for others by template %q, whose spec.accessConfig.askFor has the groups %q and the users %q",
			who.Username, t.GetName(), config.AskFor.Groups, config.AskFor.Users)
	case config.Subjects == v1alpha1.SubjectsGroups:
		return refuse(v1alpha1.ReasonTemplateInvalid, "spec.onBehalfOf: template %q gives access to groups, and not to one user", t.GetName())
	case !slices.Contains(config.AllowedUsers, spec.OnBehalfOf):
		return refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: user %q is not one of the allowedUsers %q of template %q; allowedGroups do not count, because the server does not know the groups of a user who does not ask",
			spec.OnBehalfOf, config.AllowedUsers, t.GetName())
	}
	return nil
}

// canBeAskedFor refuses names that nobody may ask for, whatever a template says: those of
// the system, with ServiceAccounts, do not ask for access by a chat.
func canBeAskedFor(spec *v1alpha1.RequestSpec) *refusal {
	switch {
	case spec.OnBehalfOf == "":
		return nil
	case strings.HasPrefix(spec.OnBehalfOf, "system:"):
		return refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: %q is a user of the system, for whom nobody can ask; name a person", spec.OnBehalfOf)
	case spec.Requester != nil && spec.OnBehalfOf == spec.Requester.Username:
		return refuse(v1alpha1.ReasonNotAllowed, "spec.onBehalfOf: %q is who asks; leave it out to ask for yourself", spec.OnBehalfOf)
	}
	return nil
}

// isParty reports whether a request is a user's: they made it, or it was made for them.
func isParty(spec *v1alpha1.RequestSpec, user authenticationv1.UserInfo) bool {
	return isRequester(spec.Requester, user) || spec.OnBehalfOf != "" && spec.OnBehalfOf == user.Username
}

// isRequester reports whether a user made a request. Two users who had the same name
// at different times are told apart where both have a UID.
func isRequester(who *v1alpha1.Requester, user authenticationv1.UserInfo) bool {
	return who != nil && who.Username == user.Username && (who.UID == "" || user.UID == "" || who.UID == user.UID)
}

func refuseSingleUse() *refusal {
	return refuse(v1alpha1.ReasonSingleUse, "spec.singleUse needs the enforcement of the audit extension, which does not run here: "+
		"use a template that does not require it")
}

func allowsDuration(t v1alpha1.Template, spec *v1alpha1.RequestSpec) *refusal {
	config := t.GetAccessConfig()
	limit, err := maxDuration(config)
	if err != nil {
		return refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", t.GetName(), err)
	}
	duration, refused := durationOf(spec)
	if refused != nil {
		return refused
	}
	if duration > limit {
		return refuse(v1alpha1.ReasonDurationTooLong, "spec.duration: %s exceeds the maximum of template %q, %s", spec.Duration, t.GetName(), config.MaxDuration)
	}
	return nil
}

func durationOf(spec *v1alpha1.RequestSpec) (time.Duration, *refusal) {
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil {
		return 0, refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q is not a duration such as 90m or 1h30m; hours are the largest unit", spec.Duration)
	}
	if duration <= 0 {
		return 0, refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %s must be more than 0; leave it out for the template's default", spec.Duration)
	}
	return duration, nil
}
