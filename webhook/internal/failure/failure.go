package failure

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
)

// Error says why a request cannot be answered, with its HTTP status.
type Error struct {
	Code int
	err  error
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// New returns an Error with a text as of fmt.Errorf.
func New(code int, format string, args ...any) error {
	return &Error{Code: code, err: fmt.Errorf(format, args...)}
}

// Code returns the HTTP status of a failure.
func Code(err error) int {
	if bad, ok := errors.AsType[*Error](err); ok {
		return bad.Code
	}
	return http.StatusInternalServerError
}

// handlerError is the text of an error that a handler returned.
type handlerError struct {
	text  string
	cause error
}

func (e *handlerError) Error() string { return e.text }

// OfHandler returns the text of a handler's error as an error. It panics if the
// methods of err do.
func OfHandler(err error) error {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("the error is a nil %T, which is not nil as an error; return nil itself", err)
	}
	return &handlerError{Cut(err.Error()), err}
}

// authorsError is what ForAuthors makes of a handlerError.
type authorsError struct{ *handlerError }

func (e authorsError) Unwrap() error { return e.cause }

// ForAuthors returns an error for the authors of the handler, who can look for the one
// that it returned (errors.Is).
func ForAuthors(err error) error {
	if failure, ok := errors.AsType[*handlerError](err); ok {
		return authorsError{failure}
	}
	return err
}

// PanicText returns the text of the reason for a panic, which may be of any type.
// Package fmt survives methods that panic; of a value without methods for its text it
// would print the content, which need not end.
func PanicText(reason any) string {
	switch reason.(type) {
	case error, fmt.Stringer, string:
		return Cut(fmt.Sprint(reason))
	}
	switch reflect.TypeOf(reason).Kind() {
	case reflect.Array, reflect.Chan, reflect.Func, reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice, reflect.Struct, reflect.UnsafePointer:
		return fmt.Sprintf("a value of type %T", reason)
	}
	return fmt.Sprint(reason)
}

// PanicPlace returns the file and line of the panic that a deferred function has just
// recovered from, such as " (main.go:12)", "" if that is unknown.
func PanicPlace() string {
	var counters [64]uintptr
	frames := runtime.CallersFrames(counters[:runtime.Callers(2, counters[:])])
	for panics := false; ; {
		frame, more := frames.Next()
		switch {
		case !strings.HasPrefix(frame.Function, "runtime.") && panics:
			return fmt.Sprintf(" (%s:%d)", filepath.Base(frame.File), frame.Line)
		case frame.Function == "runtime.gopanic":
			panics = true
		case !more:
			return ""
		}
	}
}

// maxErrorText is the most of an error's text that goes into answers and logs.
const maxErrorText = 8 << 10

// Cut returns at most maxErrorText of a text.
func Cut(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes more)", strings.ToValidUTF8(text[:maxErrorText], ""), len(text)-maxErrorText)
}
