package audit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// Rule names a rule of enforcement, in records, metrics and messages.
type Rule string

// The rules, in the order in which they are asked.
const (
	// RuleKubelet: no session through nodes/proxy, whose command no admission
	// can see.
	RuleKubelet Rule = "kubelet"
	// RuleServiceProxy: no services/proxy, which leads to a Pod that nobody
	// chose.
	RuleServiceProxy Rule = "service-proxy"
	// RuleTTY: no terminal.
	RuleTTY Rule = "tty"
	// RuleStdin: no standard input.
	RuleStdin Rule = "stdin"
	// RuleCommand: no command but those on the list.
	RuleCommand Rule = "command"
	// RuleRequest: no session without a live access request.
	RuleRequest Rule = "access-request"
	// RuleSingleUse: no second session by a request with singleUse.
	RuleSingleUse Rule = "single-use"
	// RuleUndecided: nothing that cannot be decided about now.
	RuleUndecided Rule = "undecided"
)

// violation is the rule that an act breaks, and what to do about it. It reads
// after the words "pods/exec of Pod shop/web: ", and says nothing of the command, which
// may have secrets in it.
type violation struct {
	rule    Rule
	message string
}

func violates(rule Rule, format string, args ...any) *violation {
	return &violation{rule: rule, message: fmt.Sprintf(format, args...)}
}

// text is what the user is told.
func (v *violation) text(a *act) string {
	return fmt.Sprintf("%s: rule %s: %s", describe(&a.record), v.rule, v.message)
}

// staticRules are the rules that need nothing but the act.
func (e *Enforcement) staticRules(a *act) *violation {
	r := &a.record
	switch {
	case r.Way == v1alpha1.WayServiceProxy:
		return violates(RuleServiceProxy, "it reaches a Pod that nobody chose; use kubectl port-forward to a Pod, with an access request for portforward")
	case e.ForbidTTY && terminal(r):
		return violates(RuleTTY, "terminals are forbidden here; leave out -t (--tty)")
	case e.ForbidStdin && input(r):
		return violates(RuleStdin, "standard input is forbidden here; leave out -i (--stdin)")
	case len(e.Commands) > 0:
		return e.commandRule(a)
	}
	return nil
}

// terminal reports whether an act gets a terminal, now or by attaching to what it
// adds.
func terminal(r *v1alpha1.AuditRecord) bool {
	return r.TTY || slices.ContainsFunc(r.Containers, func(c v1alpha1.AuditContainer) bool { return c.TTY })
}

func input(r *v1alpha1.AuditRecord) bool {
	return r.Stdin || slices.ContainsFunc(r.Containers, func(c v1alpha1.AuditContainer) bool { return c.Stdin })
}

func (e *Enforcement) commandRule(a *act) *violation {
	allowed := func(argv []string) bool {
		return slices.ContainsFunc(e.Commands, func(c Command) bool { return c.matches(argv) })
	}
	names := make([]string, len(e.Commands))
	for i, c := range e.Commands {
		names[i] = c.String()
	}
	list := strings.Join(names, " | ")
	switch r := &a.record; r.Way {
	case v1alpha1.WayExec:
		if !allowed(r.Command) {
			return violates(RuleCommand, "only these commands are allowed here: %s", list)
		}
	case v1alpha1.WayAttach:
		if r.Stdin {
			return violates(RuleCommand, "what is typed into an attached process may be any command; leave out -i (--stdin). These are allowed with exec: %s", list)
		}
	case v1alpha1.WayDebug:
		for _, c := range r.Containers {
			if !a.namesCommand(c.Name) {
				return violates(RuleCommand, "container %s must name its command, after --, and it must be one of these: %s", c.Name, list)
			}
			if !allowed(c.Command) {
				return violates(RuleCommand, "container %s may run these commands only: %s", c.Name, list)
			}
		}
	}
	return nil
}

// namesCommand reports whether an ephemeral container names its command. One that
// does not runs what its image says, with its arguments.
func (a *act) namesCommand(name string) bool {
	pod, ok := a.object.(*corev1.Pod)
	return ok && slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return c.Name == name && len(c.Command) > 0
	})
}
