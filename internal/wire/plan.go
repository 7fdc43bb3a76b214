package wire

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"
)

// plan decodes the value at hand into v, which is addressable and empty, and
// reports whether it could.
type plan func(d *decoder, v reflect.Value) bool

// plans has the plans of the types seen so far.
var plans sync.Map // of reflect.Type to plan

// planOf returns the plan of a type. A type may contain itself, so a stand-in is
// stored before the plan is made; a decoder that meets it waits for the plan.
func planOf(t reflect.Type) plan {
	if known, found := plans.Load(t); found {
		return known.(plan)
	}
	var made plan
	var ready sync.WaitGroup
	ready.Add(1)
	known, found := plans.LoadOrStore(t, plan(func(d *decoder, v reflect.Value) bool {
		ready.Wait()
		return made(d, v)
	}))
	if found {
		return known.(plan)
	}
	made = makePlan(t)
	ready.Done()
	plans.Store(t, made)
	return made
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// unknown is the plan of a type that fill does not decode.
func unknown(*decoder, reflect.Value) bool { return false }

// special has the plans of types that every object uses and whose own decoders are
// slow.
var special = map[reflect.Type]plan{
	reflect.TypeFor[metav1.Time]():         decodeTime,
	reflect.TypeFor[intstr.IntOrString]():  decodeIntOrString,
	reflect.TypeFor[resource.Quantity]():   decodeQuantity,
	reflect.TypeFor[map[string]string]():   mapOf[map[string]string](text),
	reflect.TypeFor[corev1.ResourceList](): mapOf[corev1.ResourceList](quantity),
}

func makePlan(t reflect.Type) plan {
	if p, found := special[t]; found {
		return p
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return pointerPlan(t)
	case reflect.PointerTo(t).Implements(unmarshaler):
		return custom
	case reflect.PointerTo(t).Implements(textUnmarshaler):
		return unknown
	}
	switch t.Kind() {
	case reflect.String:
		return decodeString
	case reflect.Bool:
		return decodeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return decodeInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return decodeUint
	case reflect.Float32, reflect.Float64:
		return decodeFloat
	case reflect.Struct:
		return structPlan(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return decodeBytes
		}
		return slicePlan(t)
	case reflect.Map:
		return mapPlan(t)
	case reflect.Interface:
		if t.NumMethod() == 0 {
			return decodeAny
		}
	}
	return unknown
}

func decodeString(d *decoder, v reflect.Value) bool {
	content, ok := text(d)
	v.SetString(content)
	return ok
}

// text decodes a string, which is empty if it is null.
func text(d *decoder) (string, bool) {
	content, ok := d.str()
	if !ok {
		return "", d.null()
	}
	return d.keep(content), true
}

func decodeBool(d *decoder, v reflect.Value) bool {
	switch d.Peek() {
	case 't':
		v.SetBool(true)
		return d.literal("true") == nil
	case 'f':
		return d.literal("false") == nil
	}
	return d.null()
}

func decodeInt(d *decoder, v reflect.Value) bool {
	text, ok := d.numeral()
	if !ok {
		return d.null()
	}
	n, err := strconv.ParseInt(string(text), 10, v.Type().Bits())
	v.SetInt(n)
	return err == nil
}

func decodeUint(d *decoder, v reflect.Value) bool {
	text, ok := d.numeral()
	if !ok {
		return d.null()
	}
	n, err := strconv.ParseUint(string(text), 10, v.Type().Bits())
	v.SetUint(n)
	return err == nil
}

func decodeFloat(d *decoder, v reflect.Value) bool {
	text, ok := d.numeral()
	if !ok {
		return d.null()
	}
	n, err := strconv.ParseFloat(string(text), v.Type().Bits())
	v.SetFloat(n)
	return err == nil
}

func decodeBytes(d *decoder, v reflect.Value) bool {
	content, ok := d.str()
	if !ok {
		return d.null()
	}
	decoded := make([]byte, base64.StdEncoding.DecodedLen(len(content)))
	n, err := base64.StdEncoding.Decode(decoded, content)
	v.SetBytes(decoded[:n])
	return err == nil
}

// decodeAny decodes a value of type any. Only custom resources have such fields.
func decodeAny(d *decoder, v reflect.Value) bool {
	text, err := d.Value()
	return err == nil && kjson.UnmarshalCaseSensitivePreserveInts(text, v.Addr().Interface()) == nil
}

func decodeTime(d *decoder, v reflect.Value) bool {
	content, ok := d.str()
	if !ok {
		return d.null()
	}
	t, err := time.Parse(time.RFC3339, string(content))
	v.Addr().Interface().(*metav1.Time).Time = t.Local()
	return err == nil
}

func decodeIntOrString(d *decoder, v reflect.Value) bool {
	into := v.Addr().Interface().(*intstr.IntOrString)
	if content, ok := d.str(); ok {
		into.Type, into.StrVal = intstr.String, d.keep(content)
		return true
	}
	text, ok := d.numeral()
	if !ok {
		return d.null()
	}
	n, err := strconv.ParseInt(string(text), 10, 32)
	into.IntVal = int32(n)
	return err == nil
}

func decodeQuantity(d *decoder, v reflect.Value) bool {
	parsed, ok := quantity(d)
	*v.Addr().Interface().(*resource.Quantity) = parsed
	return ok
}

// quantity decodes a quantity as its own decoder does, without a copy of the text.
func quantity(d *decoder) (parsed resource.Quantity, ok bool) {
	if d.Peek() != '"' {
		text, err := d.Value()
		return parsed, err == nil && !isCostly(string(text)) && parsed.UnmarshalJSON(text) == nil
	}
	quoted, err := d.Quoted()
	if err != nil || quoted.escaped {
		return parsed, false
	}
	text := strings.TrimSpace(d.keep(quoted.text[1 : len(quoted.text)-1]))
	if isCostly(text) {
		return parsed, false
	}
	parsed, err = resource.ParseQuantity(text)
	return parsed, err == nil
}

// mapOf returns the plan of a type of maps that every object has: without reflection
// it takes half the time.
func mapOf[M ~map[K]V, K ~string, V any](decode func(*decoder) (V, bool)) plan {
	return func(d *decoder, v reflect.Value) bool {
		if d.Peek() != '{' {
			return d.null()
		}
		into := make(M, d.size())
		*v.Addr().Interface().(*M) = into
		size := 0
		return d.members(func(name []byte) bool {
			key := K(d.keep(name))
			value, ok := decode(d)
			into[key] = value
			size++
			return ok && len(into) == size
		})
	}
}

// members calls decode for each member of an object.
func (d *decoder) members(decode func(name []byte) bool) bool {
	for member, err := d.Open('}'); ; member, err = d.More('}') {
		if err != nil || !member {
			return err == nil
		}
		key, err := d.Key()
		if err != nil {
			return false
		}
		name, err := d.Content(key)
		if err != nil || !decode(name) {
			return false
		}
	}
}

func pointerPlan(t reflect.Type) plan {
	elem := t.Elem()
	decode := planOf(elem)
	return func(d *decoder, v reflect.Value) bool {
		if d.null() {
			return true
		}
		v.Set(reflect.New(elem))
		return decode(d, v.Elem())
	}
}

// smallItem is the largest size of an item for which a slice starts with room for
// four.
const smallItem = 64

func slicePlan(t reflect.Type) plan {
	decode := planOf(t.Elem())
	first := 1
	if t.Elem().Size() <= smallItem {
		first = 4
	}
	return func(d *decoder, v reflect.Value) bool {
		if d.Peek() != '[' {
			return d.null()
		}
		v.Grow(d.size())
		v.SetLen(v.Cap())
		item, err := d.Open(']')
		if !item {
			v.Set(reflect.MakeSlice(t, 0, 0))
		}
		for n := 0; ; n++ {
			if err != nil || !item {
				v.SetLen(n)
				return err == nil
			}
			if n == v.Len() {
				v.Grow(max(first, n))
				v.SetLen(v.Cap())
			}
			if !decode(d, v.Index(n)) {
				return false
			}
			item, err = d.More(']')
		}
	}
}

func mapPlan(t reflect.Type) plan {
	if t.Key().Kind() != reflect.String || reflect.PointerTo(t.Key()).Implements(textUnmarshaler) {
		return unknown
	}
	decode := planOf(t.Elem())
	return func(d *decoder, v reflect.Value) bool {
		if d.Peek() != '{' {
			return d.null()
		}
		into := reflect.MakeMap(t)
		v.Set(into)
		key, elem := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		size := 0
		return d.members(func(name []byte) bool {
			key.SetString(d.keep(name))
			elem.SetZero()
			if !decode(d, elem) {
				return false
			}
			into.SetMapIndex(key, elem)
			size++
			return into.Len() == size
		})
	}
}

// field is a field of a struct, with the plan of its type.
type field struct {
	index  []int
	decode plan
}

// maxFields is the most fields that a struct may have: the bits of the set of
// fields seen.
const maxFields = 64

func structPlan(t reflect.Type) plan {
	all := FieldsOf(t)
	if len(all) > maxFields {
		return unknown
	}
	list, fields := make([]string, len(all)), make([]field, len(all))
	for i, f := range all {
		if f.Behind || f.Quoted {
			return unknown
		}
		list[i], fields[i] = f.Name, field{f.Index, planOf(f.Type)}
	}
	names := NewNames(list...)
	return func(d *decoder, v reflect.Value) bool {
		if d.Peek() != '{' {
			return d.null()
		}
		var seen uint64
		next := 0
		for member, err := d.Open('}'); ; member, err = d.More('}') {
			if err != nil || !member {
				return err == nil
			}
			i, err := d.Name(names, next)
			if err != nil {
				return false
			}
			if i < 0 {
				if d.Skip() != nil {
					return false
				}
				continue
			}
			if seen&(1<<i) != 0 {
				return false
			}
			seen |= 1 << i
			next = i + 1
			into := v
			for _, at := range fields[i].index {
				into = into.Field(at)
			}
			if !fields[i].decode(d, into) {
				return false
			}
		}
	}
}
