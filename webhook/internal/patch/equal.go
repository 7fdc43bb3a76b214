package patch

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
)

// equality compares two values of one Go type, deeply. What is equal encodes to
// the same JSON; what is not may still do so (an empty list that is omitted as
// a nil one is), which is for the differ to find out.
//
// It works on memory, because the usual answer is "nothing changed" and
// reflection takes several times longer to give it. An object and its deep copy
// share the memory of their strings, and what they do not use is zero in both:
// nearly every word is the same, and only at one that is not does it matter
// what is there.
type equality struct {
	size uintptr
	// parts are the strings, pointers, maps and so on of the type, in order of
	// their offsets. What lies between them is plain memory.
	parts []part
	// partAt has, for each word, the first part that ends behind the
	// start of the word.
	partAt []int
}

// part is a part of a value that is more than its memory.
type part struct {
	offset, size uintptr
	equal        func(a, b unsafe.Pointer) bool
}

const wordSize = unsafe.Sizeof(uintptr(0))

// equal compares two values by their addresses.
//
//nolint:gosec // every offset is one that reflect gave for the type of both values
func (e *equality) equal(a, b unsafe.Pointer) bool {
	if len(e.parts) == 0 {
		return bytes.Equal(unsafe.Slice((*byte)(a), e.size), unsafe.Slice((*byte)(b), e.size))
	}
	// A type with pointers has whole words.
	for offset := uintptr(0); offset < e.size; {
		if *(*uintptr)(unsafe.Add(a, offset)) == *(*uintptr)(unsafe.Add(b, offset)) {
			offset += wordSize
			continue
		}
		i := e.partAt[offset/wordSize]
		if i == len(e.parts) || offset < e.parts[i].offset {
			return false
		}
		p := &e.parts[i]
		if !p.equal(unsafe.Add(a, p.offset), unsafe.Add(b, p.offset)) {
			return false
		}
		offset = p.offset + p.size
	}
	return true
}

// address returns where a value is, or a copy of it if it has no address. It is
// faster than Value.Addr, which looks for the type of the pointer.
func address(v reflect.Value) unsafe.Pointer {
	return unsafe.Pointer(addressable(v).UnsafeAddr()) //nolint:gosec // the one use that package unsafe allows
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
	add := func(equal func(a, b unsafe.Pointer) bool) {
		e.parts = append(e.parts, part{offset: offset, size: t.Size(), equal: equal})
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			e.addParts(t.Field(i).Type, offset+t.Field(i).Offset, of)
		}
	case reflect.Array:
		for i := range t.Len() {
			e.addParts(t.Elem(), offset+uintptr(i)*t.Elem().Size(), of)
		}
	case reflect.String:
		add(func(a, b unsafe.Pointer) bool { return *(*string)(a) == *(*string)(b) })
	case reflect.Pointer:
		if t == reflect.TypeFor[*time.Location]() {
			// Its insides are the time package's, and it may write to them.
			add(func(unsafe.Pointer, unsafe.Pointer) bool { return false })
			return
		}
		add(pointers(of(t.Elem())))
	case reflect.Slice:
		add(slicesOf(of(t.Elem())))
	case reflect.Map:
		add(mapsOf(t))
	case reflect.Interface:
		add(interfaces(t))
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		add(func(unsafe.Pointer, unsafe.Pointer) bool { return false })
	}
}

func pointers(elem *equality) func(a, b unsafe.Pointer) bool {
	return func(a, b unsafe.Pointer) bool {
		a, b = *(*unsafe.Pointer)(a), *(*unsafe.Pointer)(b)
		return a == b || a != nil && b != nil && elem.equal(a, b)
	}
}

func slicesOf(elem *equality) func(a, b unsafe.Pointer) bool {
	return func(a, b unsafe.Pointer) bool {
		// The header of a slice is the same whatever its items are.
		x, y := *(*[]byte)(a), *(*[]byte)(b)
		if len(x) != len(y) || (x == nil) != (y == nil) {
			return false
		}
		return equalItems(elem, unsafe.Pointer(unsafe.SliceData(x)), unsafe.Pointer(unsafe.SliceData(y)), len(x)) //nolint:gosec // see equal
	}
}

// equalItems compares n items that lie one after the other.
//
//nolint:gosec // see equal
func equalItems(elem *equality, a, b unsafe.Pointer, n int) bool {
	if a == b {
		return true
	}
	if len(elem.parts) == 0 {
		size := elem.size * uintptr(n)
		return bytes.Equal(unsafe.Slice((*byte)(a), size), unsafe.Slice((*byte)(b), size))
	}
	for i := range uintptr(n) {
		if !elem.equal(unsafe.Add(a, i*elem.size), unsafe.Add(b, i*elem.size)) {
			return false
		}
	}
	return true
}

// mapsOf compares maps: those that objects are full of as what they are, any
// other one by reflection.
func mapsOf(t reflect.Type) func(a, b unsafe.Pointer) bool {
	switch t {
	case reflect.TypeFor[map[string]string]():
		return comparableMaps[map[string]string]
	case reflect.TypeFor[corev1.ResourceList]():
		return comparableMaps[corev1.ResourceList]
	case reflect.TypeFor[map[string]any]():
		return func(a, b unsafe.Pointer) bool { return equalTrees(*(*map[string]any)(a), *(*map[string]any)(b)) }
	case reflect.TypeFor[map[string][]byte]():
		return func(a, b unsafe.Pointer) bool {
			x, y := *(*map[string][]byte)(a), *(*map[string][]byte)(b)
			return (x == nil) == (y == nil) && maps.EqualFunc(x, y, bytes.Equal)
		}
	}
	return reflected(t)
}

func comparableMaps[M ~map[K]V, K, V comparable](a, b unsafe.Pointer) bool {
	x, y := *(*M)(a), *(*M)(b)
	return (x == nil) == (y == nil) && maps.Equal(x, y)
}

func interfaces(t reflect.Type) func(a, b unsafe.Pointer) bool {
	if t == reflect.TypeFor[any]() {
		return func(a, b unsafe.Pointer) bool { return equalTrees(*(*any)(a), *(*any)(b)) }
	}
	return reflected(t)
}

func reflected(t reflect.Type) func(a, b unsafe.Pointer) bool {
	return func(a, b unsafe.Pointer) bool {
		return reflect.DeepEqual(reflect.NewAt(t, a).Elem().Interface(), reflect.NewAt(t, b).Elem().Interface())
	}
}

// equalTrees compares JSON as the API machinery holds it when it has no Go type
// for it.
func equalTrees(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return b == nil
	case string:
		b, same := b.(string)
		return same && a == b
	case bool:
		b, same := b.(bool)
		return same && a == b
	case int64:
		b, same := b.(int64)
		return same && a == b
	case float64:
		b, same := b.(float64)
		return same && a == b
	case json.Number:
		b, same := b.(json.Number)
		return same && a == b
	case map[string]any:
		b, same := b.(map[string]any)
		return same && (a == nil) == (b == nil) && maps.EqualFunc(a, b, equalTrees)
	case []any:
		b, same := b.([]any)
		if !same || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		for i := range a {
			if !equalTrees(a[i], b[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a, b)
}
