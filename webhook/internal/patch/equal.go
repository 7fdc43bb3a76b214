package patch

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/bits"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// equality compares two values of one Go type, deeply. Equal values encode to
// the same JSON. Values that are not equal may do so too (an empty list is
// omitted as a nil one is); the differ finds that out.
//
// It compares memory, because the usual answer is "nothing changed", and
// reflection takes twice as long to reach it. An object and its deep copy share
// the memory of their strings, and fields that are not set are zero in both. So
// nearly every word is the same, and only one that is not needs a look at the
// field to which it belongs.
type equality struct {
	size uintptr
	// parts are the strings, pointers, maps and so on of the type, in order of
	// their offsets. What lies between them is plain memory.
	parts []part
	// partAt has, for each word, the first part that ends after the start of the
	// word.
	partAt []int
}

// part is a part of a value whose equality is more than that of its memory.
type part struct {
	offset, size uintptr
	equal        func(a, b address) bool
}

const wordSize = bits.UintSize / 8

// equal compares two values by their addresses.
func (e *equality) equal(a, b address) bool {
	if len(e.parts) == 0 {
		return bytes.Equal(a.bytes(e.size), b.bytes(e.size))
	}
	// A type with pointers has whole words.
	for offset := uintptr(0); offset < e.size; {
		if read[uintptr](a.plus(offset)) == read[uintptr](b.plus(offset)) {
			offset += wordSize
			continue
		}
		i := e.partAt[offset/wordSize]
		if i == len(e.parts) || offset < e.parts[i].offset {
			return false
		}
		p := &e.parts[i]
		if !p.equal(a.plus(p.offset), b.plus(p.offset)) {
			return false
		}
		offset = p.offset + p.size
	}
	return true
}

var equalities cache[reflect.Type, equality]

func equalityOf(t reflect.Type) *equality {
	return equalities.get(t, buildEquality)
}

func buildEquality(t reflect.Type, of func(reflect.Type) *equality, e *equality) {
	e.size = t.Size()
	e.addParts(t, 0, of)
	next := 0
	for offset := uintptr(0); offset < e.size; offset += wordSize {
		for next < len(e.parts) && e.parts[next].offset+e.parts[next].size <= offset {
			next++
		}
		e.partAt = append(e.partAt, next)
	}
}

func (e *equality) addParts(t reflect.Type, offset uintptr, of func(reflect.Type) *equality) {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			e.addParts(t.Field(i).Type, offset+t.Field(i).Offset, of)
		}
	case reflect.Array:
		for i := range t.Len() {
			e.addParts(t.Elem(), offset+uintptr(i)*t.Elem().Size(), of)
		}
	default:
		if equal := partOf(t, of); equal != nil {
			e.parts = append(e.parts, part{offset: offset, size: t.Size(), equal: equal})
		}
	}
}

// partOf returns how two values of a type compare if their memory differs, nil if
// they are then different.
func partOf(t reflect.Type, of func(reflect.Type) *equality) func(a, b address) bool {
	switch t.Kind() {
	case reflect.String:
		return func(a, b address) bool { return read[string](a) == read[string](b) }
	case reflect.Pointer:
		if t == reflect.TypeFor[*time.Location]() {
			return different // the time package may write to its fields
		}
		return pointers(of(t.Elem()))
	case reflect.Slice:
		return slicesOf(of(t.Elem()))
	case reflect.Map:
		return mapsOf(t)
	case reflect.Interface:
		return interfaces(t)
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return different
	}
	return nil
}

// different is for values that are equal only if their memory is.
func different(_, _ address) bool { return false }

func pointers(elem *equality) func(a, b address) bool {
	return func(a, b address) bool {
		a, b = read[address](a), read[address](b)
		return a == b || a != address{} && b != address{} && elem.equal(a, b)
	}
}

func slicesOf(elem *equality) func(a, b address) bool {
	return func(a, b address) bool {
		x, n, xIsNil := a.items()
		y, m, yIsNil := b.items()
		return n == m && xIsNil == yIsNil && equalItems(elem, x, y, n)
	}
}

// equalItems compares n items that lie one after the other.
func equalItems(elem *equality, a, b address, n int) bool {
	if a == b {
		return true
	}
	if len(elem.parts) == 0 {
		size := elem.size * uintptr(n)
		return bytes.Equal(a.bytes(size), b.bytes(size))
	}
	for i := range uintptr(n) {
		if !elem.equal(a.plus(i*elem.size), b.plus(i*elem.size)) {
			return false
		}
	}
	return true
}

// mapsOf compares maps: the common ones by their types, all others by reflection.
func mapsOf(t reflect.Type) func(a, b address) bool {
	switch t {
	case reflect.TypeFor[map[string]string]():
		return equalMaps[map[string]string]
	case reflect.TypeFor[corev1.ResourceList]():
		return equalMaps[corev1.ResourceList]
	case reflect.TypeFor[map[string]any]():
		return func(a, b address) bool { return equalTrees(read[map[string]any](a), read[map[string]any](b)) }
	case reflect.TypeFor[map[string][]byte]():
		return func(a, b address) bool {
			x, y := read[map[string][]byte](a), read[map[string][]byte](b)
			return (x == nil) == (y == nil) && maps.EqualFunc(x, y, equalBytes)
		}
	}
	return reflected(t)
}

// equalBytes tells nil, which is null in JSON, from no bytes, which are "".
func equalBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func equalMaps[M ~map[K]V, K, V comparable](a, b address) bool {
	x, y := read[M](a), read[M](b)
	return (x == nil) == (y == nil) && maps.Equal(x, y)
}

func interfaces(t reflect.Type) func(a, b address) bool {
	if t == reflect.TypeFor[any]() {
		return func(a, b address) bool { return equalTrees(read[any](a), read[any](b)) }
	}
	return reflected(t)
}

func reflected(t reflect.Type) func(a, b address) bool {
	return func(a, b address) bool {
		return reflect.DeepEqual(valueAt(t, a).Interface(), valueAt(t, b).Interface())
	}
}

// equalTrees compares JSON as the API machinery holds it when it has no Go type
// for it.
func equalTrees(a, b any) bool {
	switch a := a.(type) {
	case nil, string, bool, int64, float64, json.Number:
		return a == b
	case map[string]any:
		b, same := b.(map[string]any)
		return same && (a == nil) == (b == nil) && maps.EqualFunc(a, b, equalTrees)
	case []any:
		b, same := b.([]any)
		return same && (a == nil) == (b == nil) && slices.EqualFunc(a, b, equalTrees)
	}
	return reflect.DeepEqual(a, b)
}
