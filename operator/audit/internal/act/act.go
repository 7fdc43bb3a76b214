// Package act says what a way into a running container is. An [Act] is read
// from an admission request ([Read]), completed with its Pod ([Act.Identify]),
// judged ([Act.Settle]) and cleaned of secrets ([Redact]).
package act

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Act is one way into a container that somebody is about to take.
type Act struct {
	// Request is the admission request, and Object its object: the options of a
	// session, or a Pod.
	Request *extension.Request
	Object  runtime.Object
	// Record describes the act, secrets included.
	Record v1alpha1.AuditRecord
	// Pod is nil when the act concerns no Pod, or one that could not be read.
	Pod *corev1.Pod
}

// Decision is the verdict on an act. The zero value allows it.
type Decision struct {
	Denied bool
	// Rule names the rule that decided. Reason is for the person who is denied.
	Rule, Reason string
	// AccessRequest is the live request that covers the act, needed or not.
	AccessRequest *v1alpha1.AuditAccessRequest
	// BreakGlass marks an act that passed only because its user is exempt.
	BreakGlass bool
	// WouldDeny marks an act that is not denied only because of the mode of enforcement.
	WouldDeny bool
}

// Settle writes a decision into the record.
func (a *Act) Settle(d Decision) {
	r := &a.Record
	r.Decision, r.Rule, r.Reason, r.AccessRequest = v1alpha1.AuditAllowed, d.Rule, d.Reason, d.AccessRequest
	if d.Denied {
		r.Decision = v1alpha1.AuditDenied
	}
	if d.BreakGlass {
		flag(r, v1alpha1.FlagBreakGlass)
	}
	if d.WouldDeny {
		flag(r, v1alpha1.FlagWouldDeny)
	}
}

// Interactive reports whether the act is an interactive session: somebody can
// type into the container. Adding an ephemeral container is not a session yet;
// attaching to it is.
func (a *Act) Interactive() bool {
	r := &a.Record
	return (r.Way == v1alpha1.WayExec || r.Way == v1alpha1.WayAttach) && (r.TTY || r.Stdin) && !r.DryRun
}
