package patch

import (
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Copy is a copy of an object, to compare it with later. It shares the managed
// fields, which Diff ignores, and strings, which nothing can change. Its other memory
// is used again for another copy after Release, so most copies allocate nothing.
type Copy struct {
	// Object is the copy. No handler may see it: handlers keep what they see.
	Object runtime.Object

	memory *memory // nil if the copy has memory of its own
}

// CopyOf copies an object. An object that holds more than API types usually do, such
// as a value of type any, is left to its own DeepCopyObject.
func CopyOf(obj runtime.Object) Copy {
	m := memories.Get().(*memory)
	if copied, ok := m.copy(obj); ok {
		return Copy{Object: copied, memory: m}
	}
	m.release()
	return Copy{Object: obj.DeepCopyObject()}
}

// Release ends the use of the copy. A copy that is not released is garbage.
func (c *Copy) Release() {
	if c.memory != nil {
		c.memory.release()
	}
	*c = Copy{}
}

// memory is what one copy at a time is made of: pointers, slices and maps. Between
// two copies it refers to nothing else.
type memory struct {
	made []pieces // by the ordinals of their types
	size uintptr  // of all pieces, in bytes
}

// pieces are the pointers, slices or maps of one type. The first of them are used.
type pieces struct {
	all  []piece
	used int
}

// piece is a pointer, slice or map, and what the pointer points to.
type piece struct{ value, elem reflect.Value }

var memories = sync.Pool{New: func() any { return &memory{} }}

// maxMemory is the most memory that is kept for another copy: about what a Pod of
// 100 KB of JSON takes. The pool drops all of it in two garbage collections.
const maxMemory = 256 << 10

// maxEntries is the most entries of a map that is kept: maps do not shrink.
const maxEntries = 16

// perPiece is about what it takes to remember a piece.
const perPiece = 64

// copy copies an object, and reports whether it could.
func (m *memory) copy(obj runtime.Object) (runtime.Object, bool) {
	from := reflect.ValueOf(obj)
	if from.Kind() != reflect.Pointer {
		return nil, false
	}
	c := copiers.get(from.Type(), buildCopier)
	to := m.take(c)
	to.elem.Set(from.Elem())
	copied := to.value.Interface().(runtime.Object)
	accessor, hasMeta := copied.(metav1.ObjectMetaAccessor)
	if !hasMeta {
		return copied, c.elem.detach(m, to.elem)
	}
	meta := accessor.GetObjectMeta()
	managed := meta.GetManagedFields()
	meta.SetManagedFields(nil)
	ok := c.elem.detach(m, to.elem)
	meta.SetManagedFields(managed)
	return copied, ok
}

// take returns a piece that the copy does not use yet.
func (m *memory) take(c *copier) piece {
	if m.size > maxMemory {
		return c.newPiece() // none of it is kept
	}
	if len(m.made) <= c.ordinal {
		m.made = append(m.made, make([]pieces, c.ordinal+1-len(m.made))...)
	}
	p := &m.made[c.ordinal]
	if p.used == len(p.all) {
		p.all = append(p.all, c.newPiece())
		m.size += perPiece + c.pieceSize
	}
	p.used++
	return p.all[p.used-1]
}

// release clears the memory for the next copy, or drops one that is large.
func (m *memory) release() {
	if m.size <= maxMemory {
		m.clear()
		memories.Put(m)
	}
}

func (m *memory) clear() {
	for i := range m.made {
		p := &m.made[i]
		for _, piece := range p.all[:p.used] {
			if piece.elem.IsValid() {
				piece.elem.SetZero()
			} else {
				piece.value.Clear()
			}
		}
		p.used = 0
	}
}

// copier copies values of one Go type: first their own memory as it is, then what
// they refer to.
type copier struct {
	kind reflect.Kind // Invalid if values refer to nothing that changes
	// references are those of a struct.
	references []reference
	// elem copies what a pointer or slice refers to.
	elem *copier
	// copyMap copies the entries of a map, nil if it is of an unusual type.
	copyMap func(to, from reflect.Value)

	// ordinal numbers the types of pieces; a new piece takes pieceSize bytes.
	ordinal   int
	newPiece  func() piece
	pieceSize uintptr
}

// reference is a field that refers to memory that a handler can change.
type reference struct {
	offset uintptr
	index  []int // of the field, as in reflect.Value.FieldByIndex
	// copier is nil for what only the object's own DeepCopyObject can copy.
	copier *copier
}

var copiers cache[reflect.Type, copier]

// ordinals counts the types of pieces, under the lock of copiers.
var ordinals int

func buildCopier(t reflect.Type, of func(reflect.Type) *copier, c *copier) {
	switch t.Kind() {
	case reflect.Struct, reflect.Array:
		if c.addReferences(t, reference{}, false, of); len(c.references) > 0 {
			c.kind = reflect.Struct
		}
		return
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		c.kind = reflect.Interface
		return
	case reflect.Pointer:
		c.elem, c.pieceSize = of(t.Elem()), t.Elem().Size()
		c.newPiece = func() piece { p := reflect.New(t.Elem()); return piece{p, p.Elem()} }
	case reflect.Slice:
		c.elem = of(t.Elem())
		c.newPiece = func() piece { return piece{value: reflect.New(t).Elem()} }
	case reflect.Map:
		c.copyMap, c.pieceSize = copiedMaps[t], maxEntries*(t.Key().Size()+t.Elem().Size())
		c.newPiece = func() piece { return piece{value: reflect.MakeMap(t)} }
	default:
		return
	}
	c.kind, c.ordinal = t.Kind(), ordinals
	ordinals++
}

// addReferences adds the references of a field, which may be a struct with fields of
// its own. What is hidden is for its package to copy.
func (c *copier) addReferences(t reflect.Type, at reference, hidden bool, of func(reflect.Type) *copier) {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			inner := reference{offset: at.offset + f.Offset, index: append(slices.Clone(at.index), i)}
			c.addReferences(f.Type, inner, hidden || !f.IsExported() || f.Tag.Get("json") == "-", of)
		}
		return
	case reflect.Array:
		for i := range t.Len() {
			c.addReferences(t.Elem(), reference{offset: at.offset + uintptr(i)*t.Elem().Size()}, true, of)
		}
		return
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if t == reflect.TypeFor[*time.Location]() {
			return // nothing changes it
		}
		if !hidden {
			at.copier = of(t)
		}
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
	default:
		return
	}
	c.references = append(c.references, at)
}

// detach gives a value, whose own memory is that of the copy, memory for what it
// refers to. It returns false if it does not know how.
func (c *copier) detach(m *memory, v reflect.Value) bool {
	switch c.kind {
	case reflect.Struct:
		a := addressOf(v)
		for i := range c.references {
			r := &c.references[i]
			if read[uintptr](a.plus(r.offset)) == 0 {
				continue // nil
			}
			if r.copier == nil || !r.copier.detach(m, fieldOf(v, r.index)) {
				return false
			}
		}
	case reflect.Pointer:
		to := m.take(c)
		to.elem.Set(v.Elem())
		v.Set(to.value)
		return c.elem.detach(m, to.elem)
	case reflect.Slice:
		return c.detachItems(m, v)
	case reflect.Map:
		return c.detachEntries(m, v)
	case reflect.Interface:
		return v.IsNil()
	}
	return true
}

func fieldOf(v reflect.Value, index []int) reflect.Value {
	for _, i := range index {
		v = v.Field(i)
	}
	return v
}

func (c *copier) detachItems(m *memory, v reflect.Value) bool {
	n := v.Len()
	if n == 0 {
		return true // an empty list has nothing to change
	}
	to := m.take(c).value
	to.SetLen(0)
	if to.Cap() < n {
		to.Grow(n)
		m.size += uintptr(to.Cap()) * v.Type().Elem().Size()
	}
	to.SetLen(n)
	reflect.Copy(to, v)
	v.Set(to)
	if c.elem.kind == reflect.Invalid {
		return true
	}
	for i := range n {
		if !c.elem.detachItem(m, v.Index(i)) {
			return false
		}
	}
	return true
}

// detachItem is detach for an item of a list, which may be nil.
func (c *copier) detachItem(m *memory, v reflect.Value) bool {
	return c.kind != reflect.Struct && v.IsNil() || c.detach(m, v)
}

func (c *copier) detachEntries(m *memory, v reflect.Value) bool {
	if c.copyMap == nil {
		return false
	}
	var to reflect.Value
	if n := v.Len(); n > maxEntries {
		to = reflect.MakeMapWithSize(v.Type(), n)
	} else {
		to = m.take(c).value
	}
	c.copyMap(to, v)
	v.Set(to)
	return true
}

// copiedMaps has the types of maps that objects usually have.
var copiedMaps = map[reflect.Type]func(to, from reflect.Value){
	reflect.TypeFor[map[string]string]():   copyEntries[map[string]string](func(text string) string { return text }),
	reflect.TypeFor[map[string][]byte]():   copyEntries[map[string][]byte](slices.Clone[[]byte]),
	reflect.TypeFor[corev1.ResourceList](): copyEntries[corev1.ResourceList](resource.Quantity.DeepCopy),
}

func copyEntries[M ~map[K]V, K comparable, V any](copied func(V) V) func(to, from reflect.Value) {
	return func(to, from reflect.Value) {
		into := to.Interface().(M)
		for key, value := range from.Interface().(M) {
			into[key] = copied(value)
		}
	}
}
