package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
		reason, denied := denial(err)
		if denied {
			return exitf(codeRefused, "refused: %s", reason)
		}
		return exitf(codeRefused, "you have no right to do this: %s", reason)
	case apierrors.IsInvalid(err):
		return exitf(codeRefused, "refused: %s", why(err))
	}
	return err
}

// why says in plain words what an error of the API says: without the names of
// webhooks and kinds, which mean nothing to an engineer, and without Go's syntax.
func why(err error) string {
	if apierrors.IsForbidden(err) {
		reason, _ := denial(err)
		return reason
	}
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return err.Error()
	}
	var reasons []string
	for _, cause := range status.Status().Details.Causes {
		reason := invalidValue.ReplaceAllString(cause.Message, "")
		if field := cause.Field; field != "" && field != "<nil>" && !strings.Contains(reason, field) {
			reason = field + ": " + reason
		}
		if reason = plain(reason); !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) == 0 {
		return err.Error()
	}
	return strings.Join(reasons, "; ")
}

// invalidValue is how the API begins what is wrong with a field.
var invalidValue = regexp.MustCompile(`^Invalid value: (?:(?:"(?:[^"\\]|\\.)*"|-?[0-9.]+): )?`)

// denial says why something is forbidden, and whether a webhook, a policy or a quota
// denied it, and not RBAC.
func denial(err error) (reason string, denied bool) {
	for _, after := range []string{" denied the request: ", " denied request: "} {
		if _, reason, denied := strings.Cut(err.Error(), after); denied {
			return plain(reason), true
		}
	}
	_, reason, found := strings.Cut(err.Error(), " is forbidden: ")
	if !found {
		return err.Error(), false
	}
	return reason, !strings.HasPrefix(reason, `User "`) // as RBAC begins
}

// plain writes lists as people do, ["a" "b"] as "a", "b", and names this program's flags
// and commands in place of the fields that they set.
func plain(reason string) string {
	reason = goList.ReplaceAllStringFunc(reason, func(list string) string {
		return cmp.Or(strings.ReplaceAll(strings.Trim(list, "[]"), `" "`, `", "`), "(none)")
	})
	return flagsOfFields.Replace(reason)
}

// goList is a list of strings as Go prints it.
var goList = regexp.MustCompile(`\[(?:"(?:[^"\\]|\\.)*"(?: "(?:[^"\\]|\\.)*")*)?\]`)

var flagsOfFields = strings.NewReplacer(
	"spec.revoked.reason", "--reason", "spec.reason", "--reason", "spec.targetPod", "--pod", "spec.onBehalfOf", "--for", "metadata.name must have", "--name must have",
	"spec.duration: ", "duration ", "spec.duration and spec.singleUse", "the duration",
	"to end the access set spec.revoked", "to end the access use 'kubectl access revoke'", "spec.revoked: ", "",
)
