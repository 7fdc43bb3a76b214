// Package enforce decides about acts: a session needs a live access request, and
// keeps the rules of its namespace.
//
//   - decide.go decides, and rules.go and kubelet.go have the rules that need
//     only the act;
//   - grants.go finds the access requests that cover an act;
//   - advice.go tells a person who was denied how to ask;
//   - scopes.go divides the webhooks by failure policy.
package enforce

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// Options say where enforcement is on, for whom, and what it allows. Package
// audit documents them (audit.Enforcement).
type Options struct {
	Namespaces                []string
	ExemptUsers, ExemptGroups []string
	Commands                  []Command
	ForbidTTY, ForbidStdin    bool
	// Mode is Enforce if it is empty. In another one nothing is denied.
	Mode extension.Mode
}

// Validate returns an error that names the wrong option, if there is one.
func (o *Options) Validate() error {
	for i, namespace := range o.Namespaces {
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return fmt.Errorf("Namespaces[%d]: %q: %s", i, namespace, strings.Join(problems, ", "))
		}
	}
	for i, c := range o.Commands {
		if err := c.validate(); err != nil {
			return fmt.Errorf("Commands[%d]: %w", i, err)
		}
	}
	for name, list := range map[string][]string{"ExemptUsers": o.ExemptUsers, "ExemptGroups": o.ExemptGroups} {
		if i := slices.Index(list, ""); i >= 0 {
			return fmt.Errorf("%s[%d] is empty", name, i)
		}
	}
	return nil
}

// Rule names a rule of enforcement, in records, metrics and messages.
type Rule string

// The rules, in the order in which they are checked.
const (
	// RuleKubelet: no session through nodes/proxy, whose command admission cannot
	// see.
	RuleKubelet Rule = "kubelet"
	// RuleServiceProxy: no services/proxy, which leads to a Pod that nobody
	// chose.
	RuleServiceProxy Rule = "service-proxy"
	// RuleTTY: no terminal.
	RuleTTY Rule = "tty"
	// RuleStdin: no standard input.
	RuleStdin Rule = "stdin"
	// RuleCommand: only the listed commands.
	RuleCommand Rule = "command"
	// RuleRequest: no session without a live access request.
	RuleRequest Rule = "access-request"
	// RuleSingleUse: no second session by a request with singleUse.
	RuleSingleUse Rule = "single-use"
	// RuleUndecided: no session while the API server does not answer.
	RuleUndecided Rule = "undecided"
)

// violation is the rule that an act breaks, and what to do about it. The message
// follows the words "pods/exec of Pod shop/web: ". It never quotes the command,
// which may contain secrets.
type violation struct {
	rule    Rule
	message string
}

func violates(rule Rule, format string, args ...any) *violation {
	return &violation{rule: rule, message: fmt.Sprintf(format, args...)}
}

// text is the message for the user.
func (v *violation) text(a *act.Act) string {
	return fmt.Sprintf("%s: rule %s: %s", act.Describe(&a.Record), v.rule, v.message)
}

// staticRules checks the rules that need only the act.
func (o *Options) staticRules(a *act.Act) *violation {
	r := &a.Record
	switch {
	case r.Way == v1alpha1.WayPod: // an image is no session; attaching to its container is
		if len(o.Commands) > 0 {
			return violates(RuleCommand, "a new image brings commands of its own, and only some are allowed here; change the image in the workload, not in its Pod")
		}
	case r.Way == v1alpha1.WayServiceProxy:
		return violates(RuleServiceProxy, "a Service's proxy reaches a Pod that nobody chose; use kubectl port-forward to a Pod, with an access request for portforward")
	case o.ForbidTTY && hasTerminal(r):
		return violates(RuleTTY, "terminals are forbidden here; leave out -t (--tty)")
	case o.ForbidStdin && readsInput(r):
		return violates(RuleStdin, "standard input is forbidden here; leave out -i (--stdin)")
	case len(o.Commands) > 0:
		return o.commandRule(a)
	}
	return nil
}

// hasTerminal reports whether an act gets a terminal, now or by attaching to the
// container that it adds.
func hasTerminal(r *v1alpha1.AuditRecord) bool {
	return r.TTY || slices.ContainsFunc(r.Containers, func(c v1alpha1.AuditContainer) bool { return c.TTY })
}

func readsInput(r *v1alpha1.AuditRecord) bool {
	return r.Stdin || slices.ContainsFunc(r.Containers, func(c v1alpha1.AuditContainer) bool { return c.Stdin })
}

func (o *Options) commandRule(a *act.Act) *violation {
	allowed := func(argv []string) bool {
		return slices.ContainsFunc(o.Commands, func(c Command) bool { return c.matches(argv) })
	}
	names := make([]string, len(o.Commands))
	for i, c := range o.Commands {
		names[i] = c.String()
	}
	list := strings.Join(names, " | ")
	switch r := &a.Record; r.Way {
	case v1alpha1.WayExec:
		if !allowed(r.Command) {
			return violates(RuleCommand, "only these commands are allowed here: %s", list)
		}
	case v1alpha1.WayAttach:
		if r.Stdin {
			return violates(RuleCommand, "you could type any command into an attached process; leave out -i (--stdin). These are allowed with exec: %s", list)
		}
	case v1alpha1.WayDebug:
		for _, c := range r.Containers {
			if !namesCommand(a, c.Name) {
				return violates(RuleCommand, "container %s must name its command, after --, and it must be one of these: %s", c.Name, list)
			}
			if !allowed(c.Command) {
				return violates(RuleCommand, "container %s may run only these commands: %s", c.Name, list)
			}
		}
	}
	return nil
}

// namesCommand reports whether an ephemeral container names its command. If not,
// it runs its image's command, with the container's arguments.
func namesCommand(a *act.Act, container string) bool {
	pod, ok := a.Object.(*corev1.Pod)
	return ok && slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return c.Name == container && len(c.Command) > 0
	})
}
