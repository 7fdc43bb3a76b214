// Package wire reads JSON as API servers write it.
//
// [Decode] fills a Go type exactly as the API machinery does, faster. Two
// decoders share the work. fill knows the types that API types are made of, and
// takes only what has one meaning for every decoder; names with escapes, members
// that come twice, numbers that do not fit and anything malformed it leaves to
// the second, a library that knows every rule. fill does not have to be complete,
// which keeps it short, and fast.
//
// [Scanner] goes over a text once and accepts exactly what encoding/json does.
package wire
