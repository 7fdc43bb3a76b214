// Package webhook answers admission requests: from an HTTPS request of
// kube-apiserver to the response.
//
// One admission flows one way. [Server] terminates TLS and bounds the request;
// the handler of a [Webhook] reads the AdmissionReview; the chain runs the
// webhook's handlers in order, each on the object as the ones before left it;
// the difference becomes one JSON patch (RFC 6902); the answer goes back.
//
// A [ConversionHandler] answers the API server's ConversionReviews on the same server.
//
// [Group] turns handlers into webhooks: those with equal scopes share one.
// Package registration makes the cluster's configuration objects from the same
// webhooks, so that paths and names agree, also between two processes.
//
// # Reading the code
//
// Begin with handler.go, which takes a request from its first byte to its answer, and
// chain.go, in which its handlers run. server.go is in front of both. They use parts that
// run no handler: internal/limits bounds memory and connections,
// internal/review reads and writes reviews, internal/patch makes the patch,
// internal/convert converts objects, and internal/failure makes the errors of all.
//
// # Errors
//
// A denial is an answer: HTTP 200, allowed false, the handler's code and
// reason. A failure (a bad request, an error of a handler, a panic) is an HTTP
// status of 400 or more with a metav1.Status as its body, for two reasons.
// kube-apiserver applies the failure policy only to these; an AdmissionReview with
// allowed: false and code 500 is a denial to it, whatever the policy. And it shows
// users the text of a Status unchanged.
package webhook
