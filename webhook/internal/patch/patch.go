package patch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
)

// Operation is one operation of a JSON patch (RFC 6902, section 4). Diff makes
// add, replace and remove; an author's patch may have the others.
type Operation struct {
	Op   string `json:"op"`
	Path string `json:"path"`
	// From is where a move or copy takes its value.
	From string `json:"from,omitempty"`
	// Value is encoded JSON, nil for an operation that has none.
	Value json.RawMessage `json:"value,omitempty"`
}

// Equal reports whether two operations are the same to the letter.
func (o Operation) Equal(other Operation) bool {
	return o.Op == other.Op && o.Path == other.Path && o.From == other.From && bytes.Equal(o.Value, other.Value)
}

// Options are the options of [Diff].
type Options struct {
	// IgnoreStatus leaves out what changed below /status.
	IgnoreStatus bool
}

// Document is the JSON of an object, against which its Go type is compared as
// often as it changes. It remembers where what it was asked for is.
type Document struct {
	// Raw is the JSON.
	Raw     []byte
	Options Options

	root *node // of Raw; nil until it is needed
}

// Diff returns the operations that make of the document what a handler made of
// before, in an order that is always the same, and none when nothing changed. It
// takes no note of metadata.managedFields, which are the API server's own book of
// who set what: a handler that trims them to save memory must not make everyone
// lose their fields.
//
// before and after are of one Go type. The operations share no memory with the
// document.
func (d *Document) Diff(before, after runtime.Object) ([]Operation, error) {
	if reflect.TypeOf(before) != reflect.TypeOf(after) {
		return nil, fmt.Errorf("cannot compare a %T with a %T", before, after)
	}
	if same(before, after) {
		return nil, nil
	}
	differ := newDiffer(d)
	was, is := root(before), root(after)
	if err := differ.value(planOf(is.Type()), was, is); err != nil {
		return nil, fmt.Errorf("comparing a %T before and after: %w", after, err)
	}
	return differ.ops, nil
}

// Diff is for a document that is compared once.
func Diff(raw []byte, before, after runtime.Object, options Options) ([]Operation, error) {
	d := Document{Raw: raw, Options: options}
	return d.Diff(before, after)
}

// same reports whether two objects of one type are equal.
func same(before, after runtime.Object) bool {
	if b, isTree := before.(runtime.Unstructured); isTree {
		return equalTrees(b.UnstructuredContent(), after.(runtime.Unstructured).UnstructuredContent())
	}
	b, a := reflect.ValueOf(before), reflect.ValueOf(after)
	return equalityOf(b.Type().Elem()).equal(addressOf(b.Elem()), addressOf(a.Elem()))
}

// root returns what an object is as JSON: its struct, or the tree in it.
func root(obj runtime.Object) reflect.Value {
	if u, isTree := obj.(runtime.Unstructured); isTree {
		return reflect.ValueOf(u.UnstructuredContent())
	}
	return reflect.ValueOf(obj).Elem()
}

// Append appends the JSON of a patch, an array, to dst.
func Append(dst []byte, ops []Operation) []byte {
	dst = append(dst, '[')
	for i, op := range ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"op":`...)
		dst = appendString(dst, op.Op)
		dst = append(dst, `,"path":`...)
		dst = appendString(dst, op.Path)
		if op.Op == "move" || op.Op == "copy" {
			dst = append(dst, `,"from":`...)
			dst = appendString(dst, op.From)
		}
		if op.Value != nil {
			dst = append(dst, `,"value":`...)
			dst = append(dst, op.Value...)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendString appends a JSON string.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(s) // a string can always be encoded
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
