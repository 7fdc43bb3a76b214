package wire

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// Field is a field that a struct has in JSON: its own, or one of a struct that is
// embedded in it.
type Field struct {
	// Name is its name in JSON.
	Name string
	// Index leads to it, as in [reflect.Value.FieldByIndex].
	Index []int
	// Offset is where it lies in the struct, unless it is behind a pointer.
	Offset uintptr
	// Behind is true if it is in a struct that is embedded by a pointer.
	Behind bool
	Type   reflect.Type
	Tag    reflect.StructTag
	// OmitEmpty, OmitZero and Quoted are the options omitempty, omitzero and
	// string.
	OmitEmpty, OmitZero, Quoted bool

	tagged bool
}

// FieldsOf returns the fields of a struct, in the order in which they are
// written, by the rules of encoding/json: the fields of an embedded struct are
// the outer's own; of two with one name, the one that is embedded less deeply
// wins, then the one whose tag names it, then neither.
func FieldsOf(t reflect.Type) []Field {
	all := appendFields(nil, []reflect.Type{t}, Field{})
	slices.SortStableFunc(all, func(a, b Field) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), len(a.Index)-len(b.Index), preferTagged(a, b))
	})
	fields := all[:0]
	for i := 0; i < len(all); {
		first, rivals := all[i], 1
		for i++; i < len(all) && all[i].Name == first.Name; i++ {
			if len(all[i].Index) == len(first.Index) && all[i].tagged == first.tagged {
				rivals++
			}
		}
		if rivals == 1 {
			fields = append(fields, first)
		}
	}
	slices.SortFunc(fields, func(a, b Field) int { return slices.Compare(a.Index, b.Index) })
	return fields
}

func preferTagged(a, b Field) int {
	switch {
	case a.tagged == b.tagged:
		return 0
	case a.tagged:
		return -1
	}
	return 1
}

// appendFields appends the fields of a struct, of which outer says where it is. within
// has the structs that it is embedded in, and itself last. A struct that embeds itself
// by a pointer has its fields once: those further in would lose to them anyway.
func appendFields(fields []Field, within []reflect.Type, outer Field) []Field {
	t := within[len(within)-1]
	for i := range t.NumField() {
		goField := t.Field(i)
		tag := goField.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		f := Field{
			Index: append(slices.Clone(outer.Index), i), Offset: outer.Offset + goField.Offset, Behind: outer.Behind,
			Name: cmp.Or(name, goField.Name), tagged: name != "", Type: goField.Type, Tag: goField.Tag,
		}
		if embedded := embeddedStruct(goField); embedded != nil && name == "" {
			if !slices.Contains(within, embedded) {
				f.Behind = f.Behind || embedded != goField.Type
				fields = appendFields(fields, append(slices.Clone(within), embedded), f)
			}
			continue
		}
		if !goField.IsExported() {
			continue
		}
		for option := range strings.SplitSeq(options, ",") {
			f.OmitEmpty = f.OmitEmpty || option == "omitempty"
			f.OmitZero = f.OmitZero || option == "omitzero"
			f.Quoted = f.Quoted || option == "string"
		}
		fields = append(fields, f)
	}
	return fields
}

// embeddedStruct returns the struct that a field embeds, nil if it embeds none.
func embeddedStruct(f reflect.StructField) reflect.Type {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !f.Anonymous || t.Kind() != reflect.Struct {
		return nil
	}
	return t
}
