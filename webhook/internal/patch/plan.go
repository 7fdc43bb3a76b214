package patch

import (
	"encoding"
	"encoding/json"
	"reflect"

	"github.com/admitkit/admitkit/internal/wire"
)

// plan is how encoding/json writes a Go type.
type plan struct {
	form form
	elem *plan // of a pointer, list or map; of a quoted value
	// equality is that of the type.
	equality *equality
	fields   []*field // of a struct, in the order in which they are written
	// key is the field of a list's items that identifies them, nil if none does.
	key *field
}

// form says how a value is written and compared.
type form int

const (
	// leaf is a value that is replaced as a whole and written in only one way.
	leaf form = iota
	// opaque is a value that is replaced as a whole and may have the same JSON
	// though it differs in memory: a type with a MarshalJSON, such as a Quantity,
	// bytes, a float.
	opaque
	// quoted is a number, boolean or string with the option "string".
	quoted
	pointerForm
	structForm
	mapForm
	listForm
	// anyForm is an interface: its content decides.
	anyForm
)

// field is a field of a struct, with the plan of its type.
type field struct {
	wire.Field
	plan     *plan
	omitZero func(reflect.Value) bool // nil without the option omitzero
}

type planKey struct {
	t reflect.Type
	// mergeKey is the JSON name of the field that identifies a list's items.
	mergeKey string
}

var plans cache[planKey, plan]

func planOf(t reflect.Type) *plan { return plans.get(planKey{t: t}, buildPlan) }

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func buildPlan(key planKey, of func(planKey) *plan, p *plan) {
	t := key.t
	p.equality = equalityOf(t)
	p.form = formOf(t)
	switch p.form {
	case pointerForm, mapForm:
		p.elem = of(planKey{t: t.Elem()})
	case listForm:
		p.elem = of(planKey{t: t.Elem()})
		p.key = keyField(t.Elem(), key.mergeKey, of)
	case structForm:
		p.fields = fieldsOf(t, of)
	}
}

func formOf(t reflect.Type) form {
	for _, m := range []reflect.Type{marshaler, textMarshaler} {
		if t.Kind() != reflect.Interface && (t.Implements(m) || reflect.PointerTo(t).Implements(m)) {
			return opaque
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return pointerForm
	case reflect.Struct:
		return structForm
	case reflect.Map:
		return mapForm
	case reflect.Interface:
		return anyForm
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			return listForm
		}
	case reflect.Bool, reflect.String,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return leaf
	}
	return opaque
}

// keyField returns the field that identifies items: the one that the API's
// patchMergeKey tag names, or, without a tag, the item's name if it has one.
func keyField(item reflect.Type, mergeKey string, of func(planKey) *plan) *field {
	if item.Kind() == reflect.Pointer {
		item = item.Elem()
	}
	if formOf(item) != structForm {
		return nil
	}
	for _, f := range fieldsOf(item, of) {
		switch {
		case mergeKey != "" && f.Name == mergeKey:
			return f
		case mergeKey == "" && f.Name == "name" && f.Type.Kind() == reflect.String:
			return f
		}
	}
	return nil
}

// fieldsOf returns the fields of a struct and their plans.
func fieldsOf(t reflect.Type, of func(planKey) *plan) []*field {
	var fields []*field
	for _, known := range wire.FieldsOf(t) {
		f := &field{Field: known, plan: of(planKey{t: known.Type, mergeKey: known.Tag.Get("patchMergeKey")})}
		if f.OmitZero {
			f.omitZero = zeroTest(f.Type)
		}
		if f.Quoted {
			f.plan = quote(f.Type, f.plan)
		}
		fields = append(fields, f)
	}
	return fields
}

// quote returns the plan of a field with the option "string", which acts on
// scalars and on pointers to them.
func quote(t reflect.Type, p *plan) *plan {
	scalar := t
	if t.Kind() == reflect.Pointer {
		scalar = t.Elem()
	}
	if form := formOf(scalar); form != leaf && scalar.Kind() != reflect.Float32 && scalar.Kind() != reflect.Float64 {
		return p
	}
	return &plan{form: quoted, elem: p, equality: equalityOf(t)}
}

// zeroTest returns the test of omitzero for a type: its IsZero method, or whether
// it is the zero value.
func zeroTest(t reflect.Type) func(reflect.Value) bool {
	type zeroer interface{ IsZero() bool }
	switch tester := reflect.TypeFor[zeroer](); {
	case t.Kind() == reflect.Pointer && t.Implements(tester):
		return func(v reflect.Value) bool { return v.IsNil() || v.Interface().(zeroer).IsZero() }
	case t.Kind() != reflect.Interface && t.Implements(tester):
		return func(v reflect.Value) bool { return v.Interface().(zeroer).IsZero() }
	case reflect.PointerTo(t).Implements(tester):
		return func(v reflect.Value) bool { return addressable(v).Addr().Interface().(zeroer).IsZero() }
	}
	return reflect.Value.IsZero
}

// addressable returns v, or a copy of it if v has no address.
func addressable(v reflect.Value) reflect.Value {
	if v.CanAddr() {
		return v
	}
	copied := reflect.New(v.Type()).Elem()
	copied.Set(v)
	return copied
}

// of returns the field of a struct, false if it is in an embedded struct that
// is nil.
func (f *field) of(v reflect.Value) (reflect.Value, bool) {
	for i, x := range f.Index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}, false
			}
			v = v.Elem()
		}
		v = v.Field(x)
	}
	return v, true
}

// same reports whether the field is equal in the two structs at these addresses. A
// field behind a pointer always counts as different.
func (f *field) same(a, b address) bool {
	return !f.Behind && f.plan.equality.equal(a.plus(f.Offset), b.plus(f.Offset))
}

// omits reports whether encoding/json leaves the field out.
func (f *field) omits(v reflect.Value) bool {
	if f.omitZero != nil && f.omitZero(v) {
		return true
	}
	if !f.OmitEmpty {
		return false
	}
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// same reports whether two values of the plan's type are equal.
func (p *plan) same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.String:
		return a.String() == b.String()
	case reflect.Interface:
		return equalTrees(a.Interface(), b.Interface())
	}
	return p.equality.equal(addressOf(a), addressOf(b))
}
