package deliver

import (
	"errors"
	"time"
)

// reason says how a server failed. It is the label of a metric.
type reason string

const (
	// rejected: it will never take this.
	rejected reason = "rejected"
	// unauthorized: it does not accept the credentials, which may change.
	unauthorized reason = "unauthorized"
	// redirect: it is elsewhere. Redirects are not followed.
	redirect reason = "redirect"
	// busy: it asks to try again.
	busy reason = "busy"
	// unreachable: there was no answer.
	unreachable reason = "unreachable"
	// unexpected: it gave another answer, such as that there is no such path.
	unexpected reason = "unexpected"
)

var reasons = []reason{rejected, unauthorized, redirect, busy, unreachable, unexpected}

// failure is the failure of a server.
type failure struct {
	reason reason
	// after is how long the server asks to wait.
	after time.Duration
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// passes reports whether a failure may pass by itself.
func (f *failure) passes() bool { return f.reason != unauthorized && f.reason != redirect }

// reasonOf returns the reason of a failure: unreachable, unless the server gave one.
func reasonOf(err error) reason {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.reason
	}
	return unreachable
}
