// Package decision decides what to do about a request. All of it is pure: it reads nothing
// and changes nothing, so that its tests need no cluster.
//
// Read the files in this order:
//
//   - decide.go: [Of] makes a [Decision] from the facts.
//   - approval.go, check.go: what the decisions of approvers, and the answer of a check,
//     lead to.
//   - status.go: [Status], which the request is to have.
//   - records.go: [Records], which a decision adds to the records.
package decision
