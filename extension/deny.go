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

// Denyf is [Deny] with a format. With %w the denial wraps the error that led to
// it.
func Denyf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &denial{reason: err.Error(), cause: errors.Unwrap(err)}
}

type denial struct {
	reason string
	cause  error
}

func (d *denial) Error() string { return d.reason }
func (d *denial) Unwrap() error { return d.cause }
