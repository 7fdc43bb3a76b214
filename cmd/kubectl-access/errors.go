package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// The exit codes, which the package comment explains.
const (
	codeError       = 1
	codeUsage       = 2
	codeRefused     = 3
	codeTimeout     = 4
	codeNotFound    = 5
	codeInterrupted = 130
)

// exitError is an error with an exit code. Without err nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exitf(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// withCode makes an error an exitError.
func withCode(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return &exitError{code: codeError, err: err}
}

// explained translates an API error for an engineer who requests access.
func explained(err error) error {
	var exit *exitError
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, context.Canceled):
		return exitf(codeInterrupted, "interrupted")
	case meta.IsNoMatchError(err):
		return exitf(codeNotFound, "there is no admitkit in this cluster, or not its time-limited access: %w", err)
	case apierrors.IsNotFound(err):
		return &exitError{code: codeNotFound, err: err}
	case apierrors.IsForbidden(err):
		if _, reason, denied := strings.Cut(err.Error(), denial); denied {
			return exitf(codeRefused, "refused: %s", reason)
		}
		return exitf(codeRefused, "you have no right to do this: %w", err)
	case apierrors.IsInvalid(err):
		return exitf(codeRefused, "refused: %w", err)
	}
	return err
}

// denial separates the name of the webhook that denied a request, which means
// nothing to an engineer, from its message.
const denial = " denied the request: "
