package cli

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

// The exit codes, which the comment of the command explains.
const (
	CodeError       = 1
	CodeUsage       = 2
	CodeRefused     = 3
	CodeTimeout     = 4
	CodeNotFound    = 5
	CodeInterrupted = 130
)

// ExitError is an error with an exit code. Without err nothing is printed.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Exitf returns an error with an exit code.
func Exitf(code int, format string, args ...any) error {
	return &ExitError{Code: code, Err: fmt.Errorf(format, args...)}
}

// WithCode makes an error an ExitError.
func WithCode(err error) error {
	var exit *ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return &ExitError{Code: CodeError, Err: err}
}

// Explained translates an API error for an engineer who requests access.
func Explained(err error) error {
	var exit *ExitError
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, context.Canceled):
		return Exitf(CodeInterrupted, "interrupted")
	case meta.IsNoMatchError(err):
		return Exitf(CodeNotFound, "there is no admitkit in this cluster, or not its time-limited access: %w", err)
	case apierrors.IsNotFound(err):
		return &ExitError{Code: CodeNotFound, Err: err}
	case apierrors.IsForbidden(err):
		reason, denied := Denial(err)
		if denied {
			return Exitf(CodeRefused, "refused: %s", reason)
		}
		return Exitf(CodeRefused, "you have no right to do this: %s", reason)
	case apierrors.IsInvalid(err):
		return Exitf(CodeRefused, "refused: %s", Why(err))
	}
	return err
}

// Why says in plain words what an error of the API says: without the names of
// webhooks and kinds, which mean nothing to an engineer, and without Go's syntax.
func Why(err error) string {
	if apierrors.IsForbidden(err) {
		reason, _ := Denial(err)
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
		if reason = Plain(reason); !slices.Contains(reasons, reason) {
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

// Denial says why something is forbidden, and whether a webhook, a policy or a quota
// denied it, and not RBAC.
func Denial(err error) (reason string, denied bool) {
	for _, after := range []string{" denied the request: ", " denied request: "} {
		if _, reason, denied := strings.Cut(err.Error(), after); denied {
			return Plain(reason), true
		}
	}
	_, reason, found := strings.Cut(err.Error(), " is forbidden: ")
	if !found {
		return err.Error(), false
	}
	return reason, !strings.HasPrefix(reason, `User "`) // as RBAC begins
}

// Plain writes lists as people do, ["a" "b"] as "a", "b", and names this program's flags
// and commands in place of the fields that they set.
func Plain(reason string) string {
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
