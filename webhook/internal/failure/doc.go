// Package failure makes the errors of a request: why there is no answer, with the HTTP
// status that the API server gets. It is below all other parts of package webhook.
//
// [New] and [Code] are about the status. [OfHandler], [ForAuthors] and [PanicText] are for
// what handlers return or panic with: any method of such a value may panic, and its text
// may be of any length, so it becomes a bounded text at once, and [Cut] bounds it.
package failure
