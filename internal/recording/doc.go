// Package recording keeps admissions with their answers in a folder, without secrets, so that
// another build can be compared by them.
//
// A [Recorder] gets the admissions of a serving process (webhook.Recorder). It makes an [Entry] of
// each, takes the secrets out ([Redactor]), and writes it into the segments of a folder. [Read]
// reads them again, and [Rewrite] changes them.
//
// Read entry.go first, then redact.go, placeholder.go, recorder.go, segments.go and read.go.
package recording
