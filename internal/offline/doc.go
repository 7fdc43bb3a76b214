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
// [Request.Matches] decides which webhooks are called, exactly as k8s.io/apiserver does:
// testing/differential compares the two. Match conditions are compiled and evaluated by
// k8s.io/apiserver itself. If the decision needs a fact that only a cluster has, the result
// is the error [Unknown], never an answer. Such facts are the result of a match condition
// that asks the authorizer, or reads what a request does not have here; the labels of a
// namespace; an object in another version; and the resource and scope of a kind that
// [Kinds] does not know and whose plural no rule names. [Request.Why] says why a webhook is
// not called, and [Kinds.Check] finds scopes that no request can match.
//
// Package memcluster is what the extensions reach meanwhile by the clients of their manager.
//
// Read engine.go first, then request.go and subresources.go, which make requests; match.go,
// conditions.go, why.go and scopes.go, which decide and check which webhooks match; laws.go and
// updates.go, newer.go and diff.go, about what extensions did.
//
// The rest of an API server is missing: offline sets no defaults, runs no other admission
// plugins, and validates no object but its metadata.
package offline
