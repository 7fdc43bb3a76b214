package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/internal/wire"
	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// This file keeps, through a conversion, the fields that the Go type of an object does not
// know. A CustomResourceDefinition can be newer than the program that converts: without
// this, every write in another version than the stored one would silently remove its new
// fields. No function of the program can know such a field, so it stays in its place, as
// it would with the conversion strategy None. The API server drops it if the schema of the
// other version does not have it.

var decoder = reflect.TypeFor[json.Unmarshaler]()

// unknownField is a field that a type does not know.
type unknownField struct {
	path  []any // names of members, and positions in lists
	sizes []int // of the lists on the way
	value any
}

func (f *unknownField) String() string {
	var text strings.Builder
	for _, step := range f.path {
		switch step := step.(type) {
		case int:
			fmt.Fprintf(&text, "[%d]", step)
		case string:
			if text.Len() > 0 {
				text.WriteByte('.')
			}
			text.WriteString(step)
		}
	}
	return failure.Cut(text.String())
}

// keepUnknown returns the JSON of a converted object with the fields of raw that the type
// from does not know.
func keepUnknown(raw, converted []byte, from, to reflect.Type) ([]byte, error) {
	source, err := decodeTree(raw)
	if err != nil {
		return nil, err
	}
	target, err := decodeTree(converted)
	if err != nil {
		return nil, err
	}
	delete(source, "metadata") // stays as it was anyway
	var finder unknownFinder
	finder.look(source, from, unknownField{})
	for _, field := range finder.found {
		if err := field.put(target); err != nil {
			return nil, fmt.Errorf("%s is not known to %s, and cannot be kept in the %s: %w: update the program that converts", &field, from, to, err)
		}
	}
	return json.Marshal(target)
}

// unknownFinder finds unknown fields.
type unknownFinder struct {
	found  []unknownField
	fields map[reflect.Type]map[string]reflect.Type
}

// look looks for unknown fields of a type in a value.
func (u *unknownFinder) look(value any, t reflect.Type, at unknownField) {
	for t.Kind() == reflect.Pointer && !t.Implements(decoder) {
		t = t.Elem()
	}
	if t.Implements(decoder) || reflect.PointerTo(t).Implements(decoder) {
		return // it keeps what it wants
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			next := at.member(name)
			switch t.Kind() {
			case reflect.Map:
				u.look(value[name], t.Elem(), next)
			case reflect.Struct:
				if field, known := u.fieldsOf(t)[name]; known {
					u.look(value[name], field, next)
				} else {
					next.value = value[name]
					u.found = append(u.found, next)
				}
			}
		}
	case []any:
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return
		}
		for i := range value {
			u.look(value[i], t.Elem(), at.item(i, len(value)))
		}
	}
}

func (u *unknownFinder) fieldsOf(t reflect.Type) map[string]reflect.Type {
	if u.fields == nil {
		u.fields = map[reflect.Type]map[string]reflect.Type{}
	}
	if u.fields[t] == nil {
		u.fields[t] = map[string]reflect.Type{}
		for _, field := range wire.FieldsOf(t) {
			u.fields[t][field.Name] = field.Type
		}
	}
	return u.fields[t]
}

func (f unknownField) member(name string) unknownField {
	return unknownField{path: append(slices.Clip(f.path), name), sizes: f.sizes}
}

func (f unknownField) item(i, size int) unknownField {
	return unknownField{path: append(slices.Clip(f.path), i), sizes: append(slices.Clip(f.sizes), size)}
}

// put puts the field where it was. What is on the way has to be there, but the objects
// around it may have been empty. Items of two lists of the same length correspond.
func (f *unknownField) put(tree map[string]any) error {
	last := len(f.path) - 1 // a member: items are never unknown
	var at any = tree
	sizes := f.sizes
	for i, step := range f.path[:last] {
		switch step := step.(type) {
		case string:
			object, ok := at.(map[string]any)
			if !ok {
				return fmt.Errorf("there is no object around it")
			}
			if _, isItem := f.path[i+1].(int); object[step] == nil && !isItem {
				object[step] = map[string]any{}
			}
			at = object[step]
		case int:
			list, ok := at.([]any)
			if !ok || len(list) != sizes[0] {
				return fmt.Errorf("there is no list of the same length")
			}
			at, sizes = list[step], sizes[1:]
		}
	}
	object, ok := at.(map[string]any)
	if !ok {
		return fmt.Errorf("there is no object around it")
	}
	name := f.path[last].(string)
	if _, taken := object[name]; taken {
		return fmt.Errorf("the converter sets it")
	}
	object[name] = f.value
	return nil
}
