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
// [Request.Matches] decides which webhooks are called. It does so exactly as
// k8s.io/apiserver does, with which testing/differential compares it: that package
// needs more than a user of ours should have to compile. What nobody can tell
// without a cluster is the error [Unknown], never an answer: what match conditions,
// which are CEL, evaluate to, the labels of a namespace that were not given, an
// object in another version, and the resource of a kind that [Kinds] does not know.
//
// The rest of an API server is missing: offline sets no defaults, and runs no other
// admission plugins and no validation.
package offline
