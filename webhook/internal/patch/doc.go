// Package patch makes an RFC 6902 JSON patch from what a handler did to a typed
// object.
//
// [Diff] takes three things: raw, the object's JSON as the API server sent it;
// before, what raw decodes to; after, what a handler made of before. The patch
// applies to raw. Before and after are compared as Go values. A field that the Go
// type does not know is on neither side, so it is never touched; integers keep
// their 64 bits; only what changed is encoded. docs/adr/0005-patch-engine.md says
// why this is code of our own.
//
// Read the files in this order:
//
//   - patch.go: the operations and their encoding, and Diff.
//   - diff.go: the walk over both sides, which decides what an operation says.
//   - list.go: the same for lists, whose items move.
//   - align.go: which item of a list became which.
//   - plan.go: how encoding/json writes a Go type, worked out once per type.
//   - equal.go: whether two values are the same, in about the time that it takes
//     to read them.
//   - address.go: reading memory for that, with all uses of unsafe.
//   - raw.go: finding a path in raw without parsing the rest.
//   - copy.go: the copy from before, in memory that is used again and again.
//
// Two limits follow. An item of a keyed list whose key changed is another item, so
// the unknown fields of the old one are removed with it. A changed item without a
// key is taken for the one that was at its position.
package patch
