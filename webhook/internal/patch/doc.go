// Package patch makes an RFC 6902 JSON patch of what a handler did to a typed
// object.
//
// [Diff] takes three things: raw, the object's JSON as the API server sent it;
// before, what raw decodes to; after, what a handler made of before. The patch
// applies to raw. Before and after are compared as Go values, so that what the
// Go type does not know is on neither side and is never touched, integers keep
// their 64 bits, and nothing that stayed the same is encoded.
//
// Read the files in this order:
//
//   - patch.go: the operations and their encoding, and Diff.
//   - diff.go: the walk over both sides, which decides what an operation says.
//   - list.go: the same for lists, whose items move.
//   - align.go: which item of a list became which.
//   - plan.go: how encoding/json would write a Go type, worked out once a type.
//   - equal.go: whether two values are the same, in about the time that it takes
//     to read them.
//   - address.go: the reading of memory for that, all that is unsafe here.
//   - raw.go: what raw has at a path, found without parsing the rest.
//
// What an operation cannot know: an item of a keyed list whose key changed is
// another item, so the unknown fields of the old one go with it; an item without
// a key that changed is taken for the one that was in its place.
package patch
