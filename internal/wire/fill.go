package wire

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode/utf8"
)

// fill decodes the JSON of an object into the struct that into points to, and
// reports whether it did. If not, the struct is unchanged; another decoder finds
// out what is wrong. fill refuses a struct that is not empty, because decoders
// merge into that by rules of their own.
func fill(s Scanner, into any) bool {
	pointer := reflect.ValueOf(into)
	if pointer.Kind() != reflect.Pointer || pointer.IsNil() || pointer.Elem().Kind() != reflect.Struct {
		return false
	}
	target := pointer.Elem()
	// Decoders replace what is not UTF-8. Text.Decode was called for neither.
	if s.checked == nil && (!target.IsZero() || !utf8.Valid(s.text)) {
		return false
	}
	d := decoder{Scanner: s}
	if planOf(target.Type())(&d, target) && d.End() == nil {
		return true
	}
	target.SetZero()
	return false
}

// decoder is the state of one fill.
type decoder struct {
	Scanner
	strings strings.Builder
}

// sizeOfStrings is how many bytes of strings share an allocation. A handler that
// keeps one of them, such as a name, keeps at most that much memory.
const sizeOfStrings = 1 << 10

// keep copies a string out of the text.
func (d *decoder) keep(content []byte) string {
	if len(content) > sizeOfStrings/4 {
		return string(content)
	}
	if d.strings.Cap()-d.strings.Len() < len(content) {
		d.strings = strings.Builder{}
		d.strings.Grow(min(sizeOfStrings, len(d.text)))
	}
	start := d.strings.Len()
	d.strings.Write(content)
	return d.strings.String()[start:]
}

// str moves past a string and returns it, false if the next value is not one.
func (d *decoder) str() (content []byte, ok bool) {
	if d.Peek() != '"' {
		return nil, false
	}
	content, err := d.Unquoted()
	return content, err == nil
}

// null moves past a null, and reports whether there was one. The value stays
// empty.
func (d *decoder) null() bool {
	return d.Peek() == 'n' && d.literal("null") == nil
}

// numeral moves past a number and returns it, false if the next value is not one.
func (d *decoder) numeral() (text []byte, ok bool) {
	if c := d.Peek(); c != '-' && !isDigit(c) {
		return nil, false
	}
	start := d.at
	err := d.number()
	return d.text[start:d.at], err == nil
}

// size returns how many members the object or list here has, 0 if that is not known.
func (d *decoder) size() int {
	if d.checked == nil {
		return 0
	}
	if span := d.checked.spanAt(d.at); span != nil {
		return int(span.members)
	}
	return 0
}

// custom decodes a type that has a decoder of its own.
func custom(d *decoder, v reflect.Value) bool {
	text, err := d.Value()
	return err == nil && v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text) == nil
}
