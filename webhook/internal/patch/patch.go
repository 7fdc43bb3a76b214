package patch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/internal/wire"
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

// Equal reports whether two operations are identical.
func (o Operation) Equal(other Operation) bool {
	return o.Op == other.Op && o.Path == other.Path && o.From == other.From && bytes.Equal(o.Value, other.Value)
}

// Options are the options of [Diff].
type Options struct {
	// IgnoreStatus leaves out changes below /status.
	IgnoreStatus bool
}

// Document is the JSON of an object. Each Diff against it remembers where it found
// things, so the next one is faster.
type Document struct {
	wire.Text
	Options Options

	tree *tree // nil until it is needed
}

// Diff returns the operations that change the document as a handler changed before
// to after, in a fixed order; none if nothing changed. It ignores
// metadata.managedFields, in which the API server records who set which field: a
// handler that trims them to save memory must not remove them from the object.
//
// before and after are of one Go type. An unstructured object must hold values of
// the API machinery's types only. The operations share no memory with the document.
func (d *Document) Diff(before, after runtime.Object) ([]Operation, error) {
	if reflect.TypeOf(before) != reflect.TypeOf(after) {
		return nil, fmt.Errorf("cannot compare a %T with a %T", before, after)
	}
	if same(before, after) {
		return nil, nil
	}
	differ := newDiffer(d)
	was, is := root(before), root(after)
	if _, isTree := after.(runtime.Unstructured); isTree {
		if err := checkTree(is.Interface()); err != nil {
			return nil, err
		}
	}
	if err := differ.value(planOf(is.Type()), was, is); err != nil {
		return nil, fmt.Errorf("comparing a %T before and after: %w", after, err)
	}
	return differ.ops, nil
}

// Diff compares with a document that is needed only once.
func Diff(raw []byte, before, after runtime.Object, options Options) ([]Operation, error) {
	d := Document{Text: wire.Text{Raw: raw}, Options: options}
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

// root returns the value that an object is in JSON: its struct, or the tree in it.
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
	if !isPlain(s) {
		quoted, _ := json.Marshal(s) // a string can always be encoded
		return append(dst, quoted...)
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// isPlain reports whether a string needs no escapes in JSON.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
