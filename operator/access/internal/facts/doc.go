// Package facts reads what there is to know about a request, before anything is decided. It
// changes nothing.
//
// Read the files in this order:
//
//   - facts.go: [Facts], and the [Stage] of a request.
//   - read.go: [Reader] reads as much as the stage needs. The end of access never waits for
//     the API server.
//   - roles.go, sessions.go, egress.go: what a role, the end of sessions, or egress adds.
//   - promises.go: which of several requests come first where a template limits them.
package facts
