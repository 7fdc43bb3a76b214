package limits

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/wire"
)

// Estimate is what is known of the cost of a webhook's requests before they come.
type Estimate struct {
	types []reflect.Type // of the handlers
	// byKind is set if a handler takes every kind, so that the request's decides.
	byKind bool
	scheme *runtime.Scheme
	// copies is two for a mutating webhook: the second is to find the changes with.
	copies int64
	// trees is how often an object is decoded without a Go type, too.
	trees int64
}

// NewEstimate returns what is known of a webhook with these handlers.
func NewEstimate(mutating bool, handlers []*host.Handler, scheme *runtime.Scheme) Estimate {
	e := Estimate{scheme: scheme, copies: 1}
	if mutating {
		e.copies = 2
	}
	for _, h := range handlers {
		if into := h.NewObject(); into != nil {
			if t := reflect.TypeOf(into); !slices.Contains(e.types, t) {
				e.types = append(e.types, t)
			}
		} else {
			e.byKind = true
		}
		if h.Respond != nil {
			// An Extension usually makes its patch by controller-runtime's function,
			// which decodes the object twice, without a Go type.
			e.trees = 2
		}
	}
	return e
}

// Quickly estimates what a request occupies while it is decoded and answered, from
// its size and from its numbers of objects and lists, and of their members. Each of
// them counts as much as the most expensive one that the handlers' types have: a Pod's
// "{}," of three bytes can become a corev1.Container of about a kilobyte. That is ten
// times the truth for an ordinary object, and takes a hundredth of the time of its
// admission. It is enough while there is room.
//
// It counts brackets in strings, too.
func (e *Estimate) Quickly(body []byte, request *admissionv1.AdmissionRequest) int64 {
	opened, members := count(body)
	var each elements
	for _, t := range e.typesFor(request) {
		each = each.or(elementsOf(t))
	}
	return e.fixed(body) + e.copies*each.of(opened, members) + e.trees*anything.of(opened, members)
}

// Closely does the same in a quarter of the time of an admission, by what the types have
// for each member. It is a few times the truth for an ordinary object, and
// TestTheEstimateIsNotBelowWhatARequestOccupies shows that it is not below it.
func (e *Estimate) Closely(body []byte, request *admissionv1.AdmissionRequest) int64 {
	var decoded int64
	for _, t := range e.typesFor(request) {
		both := Weigh(request.Object.Raw, t) + Weigh(request.OldObject.Raw, t)
		decoded = max(decoded, e.copies*both)
	}
	opened, members := count(body)
	return e.fixed(body) + decoded + e.trees*anything.of(opened, members)
}

// fixed is the body, the strings in the copies of the object, and the answer.
func (e *Estimate) fixed(body []byte) int64 {
	return PerRequest + (2+e.copies+2*e.trees)*int64(len(body))
}

func count(body []byte) (opened, members int64) {
	opened = int64(bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("[")))
	return opened, opened + int64(bytes.Count(body, []byte(",")))
}

// typesFor returns the types to which the object of a request is decoded, one after
// the other.
func (e *Estimate) typesFor(request *admissionv1.AdmissionRequest) []reflect.Type {
	if !e.byKind {
		return e.types
	}
	into, err := e.scheme.New(schema.GroupVersionKind(request.Kind))
	if err != nil {
		into = &unstructured.Unstructured{}
	}
	return append(slices.Clip(e.types), reflect.TypeOf(into))
}

// elements is what the most expensive object or list of a type takes, and the most
// expensive member.
type elements struct{ opened, member int64 }

func (e elements) or(other elements) elements {
	return elements{max(e.opened, other.opened), max(e.member, other.member)}
}

func (e elements) of(opened, members int64) int64 { return opened*e.opened + members*e.member }

// anything is for objects without a Go type.
var anything = elements{mapHeader + groupOf(16+16), spread*(16+16) + 16}

const (
	// A map of up to eight members has a header, and a group of eight slots, with a
	// word that says which are in use. A larger one has up to two and a half slots for
	// each member, while it grows (https://go.dev/blog/swisstable).
	mapHeader = 48
	spread    = 2.5
)

func groupOf(slot int64) int64 { return 8 + 8*slot }

// known has the elements of the types that were asked for: those of handlers and of
// the scheme, so not many.
var known sync.Map // of reflect.Type to elements

func elementsOf(t reflect.Type) elements {
	if found, ok := known.Load(t); ok {
		return found.(elements)
	}
	found := walk(t, map[reflect.Type]bool{})
	if t.Implements(tree) {
		found = anything
	}
	known.Store(t, found)
	return found
}

// walk looks at every type that a value of type t can refer to.
func walk(t reflect.Type, seen map[reflect.Type]bool) (all elements) {
	if seen[t] {
		return elements{}
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer:
		all = walk(t.Elem(), seen)
		all.opened = max(all.opened, sizeOf(t.Elem()))
	case reflect.Slice:
		// A slice that grows has up to a half more room than members, and those that it
		// has outgrown wait for the garbage collector.
		all = walk(t.Elem(), seen)
		if size := sizeOf(t.Elem()); isOpened(t.Elem()) {
			all.opened = max(all.opened, size*3/2)
		} else {
			all.member = max(all.member, size*3/2)
		}
	case reflect.Map:
		slot := sizeOf(t.Key()) + sizeOf(t.Elem())
		all = walk(t.Elem(), seen)
		all.opened = max(all.opened, mapHeader+groupOf(slot))
		all.member = max(all.member, int64(spread*float64(slot))+16)
	case reflect.Array:
		all = walk(t.Elem(), seen)
	case reflect.Interface:
		all = anything
	case reflect.Struct:
		for field := range t.Fields() {
			all = all.or(walk(field.Type, seen))
		}
	}
	return all
}

func sizeOf(t reflect.Type) int64 { return int64(t.Size()) } //nolint:gosec // types are small

// isOpened reports whether the JSON of a type begins with a bracket.
func isOpened(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Array:
		return true
	case reflect.Pointer:
		return isOpened(t.Elem())
	}
	return false
}

var (
	tree        = reflect.TypeFor[runtime.Unstructured]()
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

// shape is a type as Weigh sees it.
type shape struct {
	kind
	size   int64             // of a value where it stands: in a struct, list or map
	fields map[string]*shape // of a struct
	elem   *shape            // of a pointer, list or map
	key    int64             // the size of a map's key
	custom reflect.Type      // that decodes itself
}

type kind int

const (
	plain kind = iota
	isStruct
	isPointer
	isList
	isMap
	isAny // without a Go type
	isCustom
)

// shapes has the shapes of the types that were asked for; see known. A type can refer
// to itself, so the lock is held while one is made.
var (
	shapes   = map[reflect.Type]*shape{}
	shapesMu sync.RWMutex
)

func shapeOf(t reflect.Type) *shape {
	shapesMu.RLock()
	found := shapes[t]
	shapesMu.RUnlock()
	if found != nil {
		return found
	}
	shapesMu.Lock()
	defer shapesMu.Unlock()
	return makeShape(t)
}

func makeShape(t reflect.Type) *shape {
	if found := shapes[t]; found != nil {
		return found
	}
	made := &shape{size: sizeOf(t)}
	shapes[t] = made
	switch {
	case t.Kind() == reflect.Interface || t.Implements(tree):
		made.kind = isAny
	case t.Kind() == reflect.Pointer:
		made.kind, made.elem = isPointer, makeShape(t.Elem())
	case reflect.PointerTo(t).Implements(unmarshaler):
		made.kind, made.custom = isCustom, t
	case t.Kind() == reflect.Struct:
		made.kind, made.fields = isStruct, map[string]*shape{}
		for _, field := range wire.FieldsOf(t) {
			made.fields[field.Name] = makeShape(field.Type)
		}
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		made.kind, made.elem = isList, makeShape(t.Elem())
	case t.Kind() == reflect.Map:
		made.kind, made.elem = isMap, makeShape(t.Elem())
		made.key = sizeOf(t.Key())
	}
	return made
}

// Weigh returns what a valid JSON value occupies as a value of a type, apart from its
// strings.
func Weigh(raw []byte, t reflect.Type) int64 {
	if len(raw) == 0 {
		return 0
	}
	w := weigher{Scanner: wire.NewScanner(raw)}
	w.value(shapeOf(t))
	return w.bytes * 5 / 4 // the allocator rounds up
}

// weigher adds up what the values occupy that it reads, apart from where they stand.
type weigher struct {
	wire.Scanner
	bytes int64
}

func (w *weigher) value(s *shape) {
	c := w.Peek()
	switch {
	case s.kind == isPointer:
		if c != 'n' {
			w.bytes += s.elem.size
		}
		w.value(s.elem)
	case s.kind == isStruct && c == '{':
		w.members(func(name []byte) *shape { return s.fields[string(name)] })
	case s.kind == isList && c == '[':
		w.list(s.elem)
	case s.kind == isMap && c == '{':
		w.table(s.key+s.elem.size, s.elem)
	case s.kind == isCustom:
		raw, _ := w.Value() // it was read before
		w.bytes += scalar + elementsOf(s.custom).of(count(raw))
	case s.kind == isAny && c == '{':
		w.table(16+16, s)
	case s.kind == isAny && c == '[':
		w.bytes += scalar + 16
		w.list(s)
	case s.kind == isAny:
		w.bytes += scalar
		w.Pass()
	default:
		w.Pass()
	}
}

// scalar is what a value occupies behind an interface.
const scalar = 16

// list adds the entries of a list. One that grew has up to half as much room again.
func (w *weigher) list(elem *shape) {
	for item, err := w.Open(']'); item && err == nil; item, err = w.More(']') {
		w.bytes += elem.size * 3 / 2
		w.value(elem)
	}
}

func (w *weigher) table(entry int64, elem *shape) {
	entries := w.members(func([]byte) *shape { return elem })
	w.bytes += mapHeader
	if entries > 0 {
		w.bytes += max(groupOf(entry), int64(spread*float64(entry*entries)))
	}
}

// members adds the members of an object, each in its shape, and returns their number.
func (w *weigher) members(shapeOf func(name []byte) *shape) (n int64) {
	for member, err := w.Open('}'); member && err == nil; member, err = w.More('}') {
		key, err := w.Key()
		if err != nil {
			return n // impossible: it was read before
		}
		name, _ := w.Content(key)
		n++
		if s := shapeOf(name); s != nil {
			w.value(s)
		} else {
			w.Pass()
		}
	}
	return n
}
