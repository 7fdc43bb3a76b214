// Package replay sends recorded admissions to the webhooks of today's build, and reports what they
// answer differently. The command `replay` and testing/admit use it.
//
// [Run] does it. It sends each request to the webhook that it was recorded of, without matching:
// the API server matched. It reads one admission at a time and keeps a few examples of each
// difference, so its memory does not grow with the recordings.
//
// A [Candidate] does the same with admissions as they come, from the build that answers them.
//
// Read run.go first, then compare.go, report.go, times.go and candidate.go.
package replay
