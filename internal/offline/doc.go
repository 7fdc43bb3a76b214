// Package offline answers admissions without a cluster. It does what an API
// server does around its webhooks. The command `review` and testing/admit use it.
//
// An [Engine] sends a [Request] as the JSON of an AdmissionReview to the HTTP
// handler of each webhook whose scope matches: first to the mutating webhooks,
// whose patches it applies, then to the validating ones. It reinvokes a mutating
// webhook that asks for it if a later webhook changed the object. A request thus
// passes through the whole codec, the chain of extensions and the patch engine.
// [Engine.Check] reports what the extensions did that Kubernetes forbids.
//
// The rest of an API server is missing: offline sets no defaults, runs no other
// admission plugins and no validation, and treats match conditions, which are
// CEL, as true.
package offline
