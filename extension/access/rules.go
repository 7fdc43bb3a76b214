package access

import (
	"fmt"
	"slices"
	"strings"
	"time"

	texttemplate "text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// refusal is why a request is not granted: a reason for conditions and metrics
// and a message for people.
type refusal struct {
	reason  string
	message string
}

func (r *refusal) Error() string { return r.message }

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...)}
}

// Reasons of refusals that no condition has. The metric of denials has these and
// those of conditions.
const (
	reasonChanged = "Changed"
	reasonEnded   = "Ended"
)

// maxDuration returns the longest duration that a template allows, if both of
// its durations are in order.
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
		return 0, fmt.Errorf("spec.accessConfig.defaultDuration: %s: must be more than nothing", config.DefaultDuration)
	}
	if standard > limit {
		return 0, fmt.Errorf("spec.accessConfig.defaultDuration: %s exceeds maxDuration, %s", config.DefaultDuration, config.MaxDuration)
	}
	return limit, nil
}

// allows checks a request against a template, as it is admitted and again as it
// is granted.
func allows(config *v1alpha1.AccessConfig, templateName string, spec *v1alpha1.RequestSpec) *refusal {
	who := spec.Requester
	if who == nil || who.Username == "" {
		return refuse(v1alpha1.ReasonRequesterUnknown, "spec.requester is empty: the request did not pass admission")
	}
	member := slices.ContainsFunc(who.Groups, func(group string) bool { return slices.Contains(config.AllowedGroups, group) })
	if !member && !slices.Contains(config.AllowedUsers, who.Username) {
		return refuse(v1alpha1.ReasonNotAllowed, "user %q is not allowed by template %q, which allows the groups %q and the users %q",
			who.Username, templateName, config.AllowedGroups, config.AllowedUsers)
	}
	if r := durationAllowed(config, templateName, spec); r != nil {
		return r
	}
	if config.RequireReason && strings.TrimSpace(spec.Reason) == "" {
		return refuse(v1alpha1.ReasonMissing, "template %q requires spec.reason", templateName)
	}
	if config.SingleUse && !spec.SingleUse {
		return refuse(v1alpha1.ReasonSingleUse, "template %q requires spec.singleUse", templateName)
	}
	return nil
}

func durationAllowed(config *v1alpha1.AccessConfig, templateName string, spec *v1alpha1.RequestSpec) *refusal {
	limit, err := maxDuration(config)
	if err != nil {
		return refuse(v1alpha1.ReasonTemplateInvalid, "template %q: %v", templateName, err)
	}
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil || duration <= 0 {
		return refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q is not a duration such as 90m or 1h30m", spec.Duration)
	}
	if duration > limit {
		return refuse(v1alpha1.ReasonDurationTooLong, "spec.duration: %s exceeds the maximum of template %q, %s", spec.Duration, templateName, config.MaxDuration)
	}
	return nil
}

// defaultCommand is the access command of a template that has none.
const defaultCommand = "kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- /bin/sh"

// commandLimit bounds what a template of a command may produce.
const commandLimit = 4096

// accessCommand makes the command by which the engineer uses the access.
func accessCommand(config *v1alpha1.AccessConfig, pod *metav1.ObjectMeta) (string, error) {
	text := config.AccessCommand
	if text == "" {
		text = defaultCommand
	}
	parsed, err := texttemplate.New("accessCommand").Option("missingkey=zero").Parse(text)
	if err != nil {
		return "", fmt.Errorf("spec.accessConfig.accessCommand: %w", err)
	}
	out := &limited{limit: commandLimit}
	if err := parsed.Execute(out, struct{ Metadata *metav1.ObjectMeta }{pod}); err != nil {
		return "", fmt.Errorf("spec.accessConfig.accessCommand: %w", err)
	}
	return out.String(), nil
}

// limited is a buffer that refuses more than limit bytes.
type limited struct {
	strings.Builder
	limit int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.limit {
		return 0, fmt.Errorf("the result is longer than %d bytes", l.limit)
	}
	return l.Builder.Write(p)
}

// podReady reports whether a Pod runs, is ready, and is not going away.
func podReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}
