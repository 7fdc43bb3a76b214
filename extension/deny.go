package extension

import (
	"errors"
	"fmt"
)

// Deny returns the error that refuses an object: the client gets 403 Forbidden
// and the reason. Write the reason for the person who reads it in a terminal.
func Deny(reason string) error {
	return &denial{reason: reason}
}

// Denyf is [Deny] with a format. It understands %w, so that the denial can wrap
// the error that led to it.
func Denyf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &denial{reason: err.Error(), cause: errors.Unwrap(err)}
}

// DenialReason returns the reason of the denial in err's chain, and whether
// there is one. What wraps a denial is still a denial, with the reason
// unchanged.
func DenialReason(err error) (reason string, denied bool) {
	var d *denial
	if errors.As(err, &d) {
		return d.reason, true
	}
	return "", false
}

type denial struct {
	reason string
	cause  error
}

func (d *denial) Error() string { return d.reason }
func (d *denial) Unwrap() error { return d.cause }
