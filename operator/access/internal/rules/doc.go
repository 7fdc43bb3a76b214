// Package rules says what is allowed, and why something is refused. Admission asks it when
// a request or a template is made, and the decision asks it again before it grants anything.
// It reads nothing.
//
// Read the files in this order:
//
//   - refusal.go: [Refusal], which says why a request is not granted.
//   - rules.go: [Allows] checks a request against its template.
//   - approval.go, limits.go, command.go: who must approve, how many requests a user may
//     have, and the access command.
//   - namespaces.go, roles.go: the namespaces and the roles that the operator names.
//   - egress.go, sessions.go, target.go: what a template must not ask for, and what it lacks.
package rules
