// Package review is the codec of webhooks: it reads an AdmissionReview or a
// ConversionReview from an HTTP request, and writes the answer. It is stricter than
// encoding/json where two readers of one review could differ.
//
// Read the files in this order:
//
//   - review.go: [Read] takes the body of a request, [Parse] the review in it.
//   - envelope.go: reading an AdmissionReview in one pass, its objects unchanged, and
//     the beginning of one that is too large.
//   - answer.go: the decision, or the Status of a failure.
//   - conversion.go: both ways for a ConversionReview.
package review
