package rules

import "fmt"

// Refusal is why a request is not granted.
type Refusal struct {
	// Reason is for conditions and metrics, Message for people.
	Reason, Message string
	// Condition does not hold, and so neither do those of the resources. Default:
	// those of the resources alone.
	Condition string
	// Waits says that what has to change is not watched, so that it must be looked
	// at again: it belongs to others, and a cache of it would grow with the cluster.
	Waits bool
	// Check names the check that must be asked.
	Check string
	// Quiet says that what is missing is probably on its way, and no warning is due.
	Quiet bool
}

func (r *Refusal) Error() string { return r.Message }

// Refuse returns a refusal. Its reason is for conditions and metrics.
func Refuse(reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// About names the condition that does not hold.
func (r *Refusal) About(condition string) *Refusal {
	r.Condition = condition
	return r
}

// ForNow marks a refusal that must be looked at again.
func (r *Refusal) ForNow() *Refusal {
	r.Waits = true
	return r
}

// Reasons of refusals that no condition has. The metric of denials has these and
// those of conditions.
const (
	ReasonChanged = "Changed"
	ReasonEnded   = "Ended"

	ReasonInvalidName = "InvalidName"
)
