// Package wire reads JSON as API servers write it.
//
// [Scanner] goes over a text once and accepts exactly what encoding/json does.
// [Decode] goes over it once more and fills a Go type: it knows the types that
// API types are made of, and takes only what has one meaning for every decoder.
// Names with escapes, members that come twice, numbers that do not fit,
// anything malformed: all that it leaves to a decoder that knows every rule.
// What it does not have to be is complete, which makes it short, and fast.
package wire
