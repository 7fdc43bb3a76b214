// Package bridge lets internal/host see the inside of what package extension
// shows to authors from the outside. An author calls none of it, so it is in no
// author's documentation.
package bridge

// Inside is set by package extension. Its methods are those of the interface
// that internal/host asserts, whose types this package cannot import.
var Inside any
