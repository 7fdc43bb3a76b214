// Package decision says what follows from the facts about a SandboxRun. It computes only: it neither
// reads nor writes anything, and cannot fail.
//
// Read the files in this order:
//
//   - decide.go: [Of] makes a [Decision] of the facts.
//   - ends.go: when an Interactive run ends.
//   - recorder.go: whether the recorder of sessions reaches its collector.
package decision
