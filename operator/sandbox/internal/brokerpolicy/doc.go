// Package brokerpolicy is about BrokerPolicies: who may write which, and what those that are there grant
// to runs and Workspaces.
//
// Read the files in this order:
//
//   - grants.go: [ForTemplate] and [ForSeed] find the policies that apply, [Shortfall] says what they do
//     not grant, and [ClosedBy] which of them let nobody into a run.
//   - rules.go: [Parts], and the admission of policies.
//   - hosts.go: which names a policy can have.
//   - warnings.go: what the author of a policy may not expect.
//   - conditions.go: the reconciler that says in the status whether runs discover names.
package brokerpolicy
