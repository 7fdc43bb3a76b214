package rules

import (
	"errors"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// MissingTemplate refuses a request whose template does not exist.
func MissingTemplate(k grant.Kind, namespace, name string) *Refusal {
	return Refuse(v1alpha1.ReasonTemplateMissing, "%s %s/%s does not exist", k.TemplateKind, namespace, name)
}

// NoTarget says why an error of package workload keeps a request from being
// granted for now; nil for any other error.
func NoTarget(err error) *Refusal {
	var unknown workload.UnknownPodError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, workload.ErrNoPod):
		return &Refusal{Reason: v1alpha1.ReasonNoPod, Message: err.Error(), Waits: true, Quiet: true}
	case errors.As(err, &unknown):
		return Refuse(v1alpha1.ReasonUnknownPod, "%s", err.Error()).ForNow()
	case workload.Missing(err):
		return &Refusal{Reason: v1alpha1.ReasonTargetMissing, Message: err.Error(), Waits: true, Quiet: true}
	}
	return nil
}

// LostPod refuses a request whose Pod no longer exists; another is not chosen.
func LostPod(pod, what string) *Refusal {
	return Refuse(v1alpha1.ReasonPodGone, "Pod %s %s; make another request", pod, what)
}

// These say how a grant has lost its Pod.
const (
	PodGone     = "is gone"
	PodGoing    = "is being deleted"
	PodReplaced = "was replaced by another of the same name"
	PodOther    = "is not the one that status.podUID names"
)

// LostRole refuses a request whose role was lost; another is not given.
func LostRole(role grant.Choice, what string) *Refusal {
	return Refuse(v1alpha1.ReasonRoleLost, "%s %s; make another request", role, what)
}

// NoCheck refuses a template that names a check which there is not. Its names are no
// secret from those who may write templates; where they lead to is.
func NoCheck(names []string, name string) *Refusal {
	if name == "" || slices.Contains(names, name) {
		return nil
	}
	there := "there are: " + strings.Join(names, ", ")
	if len(names) == 0 {
		there = "there are none; the operator configures them with --access-checks"
	}
	return Refuse(v1alpha1.ReasonCheckFailed, "spec.accessConfig.check: there is no check %q; %s", name, there)
}
