// Package offline answers admissions without a cluster: it does what an API
// server does around its webhooks. `review` and testing/admit are built on it.
//
// A [Request] becomes an AdmissionReview in JSON, which goes to the HTTP handler
// of each webhook whose scope matches, the mutating ones first; each patch is
// applied; a mutating webhook that asks to be reinvoked is, if one after it
// changed the object. So nothing of the codec, the chain and the patch engine is
// left out. What an API server does besides is: there are no defaults filled in,
// no other admission plugins, no validation, and match conditions, which are CEL,
// count as true.
package offline
