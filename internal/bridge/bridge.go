// Package bridge gives internal/host access to unexported parts of package extension.
// Authors of extensions do not call them, so their documentation does not show them.
package bridge

// Inside is a value of package extension, which sets it. internal/host asserts the
// interface with its methods, because this package cannot import their types.
var Inside any
