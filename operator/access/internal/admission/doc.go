// Package admission answers the admissions of access, in every replica. It allows nothing
// by itself: it writes who somebody is, and refuses.
//
// Read the files in this order:
//
//   - admission.go: [Parts], all handlers with their scopes.
//   - defaulting.go, validate.go: requests.
//   - template.go, roles.go: templates.
//   - decisions.go, pending_decisions.go: decisions about requests that wait for approval.
//   - session_guard.go: sessions, which end with access.
//   - record_guard.go, status_guard.go, policy_guard.go: what only the reconcilers write.
//   - deletions.go: who deletes a request.
package admission
