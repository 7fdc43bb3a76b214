package outbox

import (
	"errors"
	"time"
)

// Reason says how a receiver failed. It is the label of a metric.
type Reason string

// The reasons.
const (
	// Rejected: it will never take this.
	Rejected Reason = "rejected"
	// Unauthorized: it does not accept the credentials, which may change.
	Unauthorized Reason = "unauthorized"
	// Redirect: it is elsewhere. Redirects are not followed.
	Redirect Reason = "redirect"
	// Busy: it asks to try again.
	Busy Reason = "busy"
	// Unreachable: there was no answer.
	Unreachable Reason = "unreachable"
	// Unexpected: it gave another answer, such as that there is no such path.
	Unexpected Reason = "unexpected"
)

// Reasons are all of them.
var Reasons = []Reason{Rejected, Unauthorized, Redirect, Busy, Unreachable, Unexpected}

// Failure is the failure of a receiver.
type Failure struct {
	Reason Reason
	// After is how long the receiver asks to wait.
	After time.Duration
	Err   error
}

func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns what failed.
func (f *Failure) Unwrap() error { return f.Err }

// passes reports whether a failure may pass by itself.
func (f *Failure) passes() bool { return f.Reason != Unauthorized && f.Reason != Redirect }

// IsRejected reports whether a receiver will never take what was sent.
func IsRejected(err error) bool { return ReasonOf(err) == Rejected }

// ReasonOf returns the reason of a failure: unreachable, unless the receiver gave one.
func ReasonOf(err error) Reason {
	if failure, ok := errors.AsType[*Failure](err); ok {
		return failure.Reason
	}
	return Unreachable
}
