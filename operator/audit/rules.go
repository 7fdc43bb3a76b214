package audit

import (
	"time"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
	"github.com/admitkit/admitkit/operator/audit/internal/touch"
)

// LabelEnforce on a Namespace, with the value "true", turns enforcement on there:
// admitkit.dev/enforce-access. People who may exec should not be able to write
// Namespaces.
const LabelEnforce = enforce.Label

// Enforcement makes sessions need a live access request of operator/access:
// without one there is no exec, attach, portforward, proxy, ephemeral container or
// new image in a Pod that runs, whatever RBAC allows.
//
// Where enforcement is on, the webhook's failure policy is Fail: while no replica
// runs there are no sessions. For exempt users the failure policy of recording
// applies.
type Enforcement struct {
	// Namespaces are the names of the namespaces in which enforcement is on.
	// Default: those with the label [LabelEnforce].
	Namespaces []string
	// ExemptUsers and ExemptGroups may break every rule (break-glass). The record,
	// a warning and a metric say when they do. Put service accounts here by their
	// user names: system:serviceaccount:NAMESPACE:NAME.
	ExemptUsers, ExemptGroups []string
	// Commands are those that exec and ephemeral containers may run. With them,
	// nobody may change the image of a Pod, which brings commands of its own. Default:
	// any.
	Commands []Command
	// ForbidTTY and ForbidStdin forbid terminals and standard input.
	ForbidTTY, ForbidStdin bool
	// Mode is Enforce, or Warn or Observe, in which nothing is refused: the record has the
	// flag WouldDeny with the rule and the reason, which in Warn the user sees, too, and the
	// failure policy is that of recording. Default: Enforce.
	Mode extension.Mode
}

func (e *Enforcement) options() enforce.Options {
	o := enforce.Options{
		Namespaces: e.Namespaces, ExemptUsers: e.ExemptUsers, ExemptGroups: e.ExemptGroups,
		ForbidTTY: e.ForbidTTY, ForbidStdin: e.ForbidStdin, Mode: e.Mode,
	}
	for _, c := range e.Commands {
		o.Commands = append(o.Commands, enforce.Command(c))
	}
	return o
}

// Command is an entry in the list of allowed commands. It is compared word by
// word with the array that the API server hands to the container, and not with a
// line of text: "ls -l" as one word differs from "ls" and "-l".
type Command struct {
	// Argv is the command and its arguments.
	Argv []string
	// Prefix allows any arguments after Argv. Mind what they can do: sh, env, find
	// and tar each start other commands.
	Prefix bool
}

// ParseCommand reads a command as flags and files spell it: words between
// spaces, or a JSON array of strings if a word contains spaces. A final word
// "..." makes it a prefix.
func ParseCommand(text string) (Command, error) {
	c, err := enforce.ParseCommand(text)
	return Command(c), err
}

// String returns the command as [ParseCommand] reads it.
func (c Command) String() string { return enforce.Command(c).String() }

// The mark on a Pod, which is written before the first interactive session begins. A
// webhook keeps it as it is until the Pod is gone.
const (
	// LabelTouchedBy, admitkit.dev/touched-by, has the first user's name, with a dash for
	// each character that a label's value cannot have.
	LabelTouchedBy = touch.Label
	// AnnotationTouchedBy, admitkit.dev/touched-by, has the user's full name.
	AnnotationTouchedBy = touch.AnnotationTouchedBy
	// AnnotationTouchedAt, admitkit.dev/touched-at, has the time when the first
	// session began (RFC 3339).
	AnnotationTouchedAt = touch.AnnotationTouchedAt
	// AnnotationEvictAfter, admitkit.dev/evict-after, puts the eviction off. It is a
	// Go duration such as 4h, counted from the beginning of the first session.
	// Anybody who may annotate the Pod may set it.
	AnnotationEvictAfter = touch.AnnotationEvictAfter
)

// TouchedPods says what happens to a Pod after an interactive session: an exec
// or attach with a terminal or standard input. What somebody typed into a Pod is
// in no image and no manifest, and goes away with the Pod.
//
// Pods are marked before the session begins. If a Pod cannot be marked, the
// session begins nevertheless, and the failure is logged and counted.
type TouchedPods struct {
	// EvictAfter is the time from the beginning of the first session to the Pod's
	// eviction, which the leading replica does. PodDisruptionBudgets are
	// respected. Default: never; Pods are only marked.
	EvictAfter time.Duration
	// MaxEvictAfter is how far the annotation [AnnotationEvictAfter] can put the
	// eviction off. Default: 24 h, or EvictAfter if that is longer.
	MaxEvictAfter time.Duration
	// Unmanaged evicts also Pods that no controller replaces. Default: they are
	// only marked.
	Unmanaged bool
}

func (t *TouchedPods) options() touch.Options { return touch.Options(*t) }
