package patch

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// differ walks through both sides of the comparison where they differ, and through
// raw alongside. raw decides what an operation can be: a value that the Go type
// writes but raw does not have (an empty struct, for example) cannot be the parent
// of anything, and a value that raw spells out but the Go type omits (a null, an
// empty string) exists already.
type differ struct {
	options Options
	ops     []Operation
	// path leads to the current value. Its first step is the document.
	path []step
	// buffer has the values of ops.
	buffer  bytes.Buffer
	encoder *json.Encoder // to the buffer, nil until it is needed
}

// step is one step of a path: to a member of an object or an item of a list.
type step struct {
	name  string
	index int // -1 in an object
	// node is the value in raw, nil if raw has none.
	node *node
}

func newDiffer(doc *Document) *differ {
	if doc.tree == nil {
		doc.tree = treeOf(doc.Text)
	}
	d := &differ{options: doc.Options, path: make([]step, 1, 8)}
	d.path[0].node = &doc.tree.root
	return d
}

func (d *differ) raw() *node { return d.path[len(d.path)-1].node }

func (d *differ) down(s step) { d.path = append(d.path, s) }
func (d *differ) up()         { d.path = d.path[:len(d.path)-1] }

// value compares two values that are both written, at a path that raw has.
func (d *differ) value(p *plan, before, after reflect.Value) error {
	switch p.form {
	case pointerForm:
		if !before.IsNil() && !after.IsNil() {
			return d.value(p.elem, before.Elem(), after.Elem())
		}
	case anyForm:
		if !before.IsNil() && !after.IsNil() && before.Elem().Type() == after.Elem().Type() {
			return d.value(planOf(after.Elem().Type()), before.Elem(), after.Elem())
		}
	case structForm:
		if d.raw().isObject() {
			return d.fields(p, before, after)
		}
	case mapForm:
		if d.raw().isObject() && before.Len() > 0 && after.Len() > 0 {
			return d.entries(p, before, after)
		}
	case listForm:
		if d.raw().isArray() && before.Len() > 0 && after.Len() > 0 {
			return d.items(p, before, after)
		}
	}
	return d.replace(p, before, after)
}

func (d *differ) fields(p *plan, before, after reflect.Value) error {
	before, after = addressable(before), addressable(after)
	a, b := addressOf(before), addressOf(after)
	for _, f := range p.fields {
		if f.same(a, b) || d.ignores(f.Name) {
			continue
		}
		was, had := f.of(before)
		is, has := f.of(after)
		if f.Behind && had && has && f.plan.same(was, is) {
			continue
		}
		had, has = had && !f.omits(was), has && !f.omits(is)
		if err := d.member(f.Name, f.plan, was, is, had, has); err != nil {
			return err
		}
	}
	return nil
}

// entry is a member of a map that differs between both sides.
type entry struct {
	name    string
	was, is reflect.Value
}

func (d *differ) entries(p *plan, before, after reflect.Value) error {
	if before.Type() == stringMap {
		return d.strings(before.Interface().(map[string]string), after.Interface().(map[string]string))
	}
	changed, err := changedEntries(p, before, after)
	if err != nil {
		return err
	}
	slices.SortFunc(changed, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range changed {
		if d.ignores(e.name) {
			continue
		}
		if err := d.member(e.name, p.elem, e.was, e.is, e.was.IsValid(), e.is.IsValid()); err != nil {
			return err
		}
	}
	return nil
}

func changedEntries(p *plan, before, after reflect.Value) (changed []entry, err error) {
	for it := before.MapRange(); it.Next(); {
		is := after.MapIndex(it.Key())
		if is.IsValid() && p.elem.same(it.Value(), is) {
			continue
		}
		name, err := keyName(it.Key())
		if err != nil {
			return nil, err
		}
		changed = append(changed, entry{name, it.Value(), is})
	}
	for it := after.MapRange(); it.Next(); {
		if before.MapIndex(it.Key()).IsValid() {
			continue
		}
		name, err := keyName(it.Key())
		if err != nil {
			return nil, err
		}
		changed = append(changed, entry{name: name, is: it.Value()})
	}
	return changed, nil
}

var stringMap = reflect.TypeFor[map[string]string]()

// strings compares labels and annotations. Most handlers change these, and reflection
// would take most of their time.
func (d *differ) strings(before, after map[string]string) error {
	var room [8]string
	changed := room[:0]
	for name, was := range before {
		if is, has := after[name]; !has || is != was {
			changed = append(changed, name)
		}
	}
	for name := range after {
		if _, had := before[name]; !had {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	for _, name := range changed {
		if d.ignores(name) {
			continue
		}
		is, has := after[name]
		d.down(step{name: name, index: -1, node: d.raw().member(name)})
		if err := d.string(is, has); err != nil {
			return err
		}
		d.up()
	}
	return nil
}

// string makes the current value a string, or nothing.
func (d *differ) string(is string, has bool) error {
	inRaw := d.raw() != nil
	if !has {
		if inRaw {
			d.emit("remove", nil)
		}
		return nil
	}
	value, err := d.encodeString(is)
	if err != nil {
		return err
	}
	if inRaw {
		d.emit("replace", value)
	} else {
		d.emit("add", value)
	}
	return nil
}

// keyName returns how encoding/json writes the key of a map.
func keyName(key reflect.Value) (string, error) {
	if key.Kind() == reflect.String {
		return key.String(), nil
	}
	if m, isText := reflect.TypeAssert[encoding.TextMarshaler](key); isText {
		text, err := m.MarshalText()
		return string(text), err
	}
	return fmt.Sprint(key.Interface()), nil
}

// ignores reports whether a member of the current value is left out of patches.
func (d *differ) ignores(name string) bool {
	switch len(d.path) {
	case 1:
		return d.options.IgnoreStatus && name == "status"
	case 2:
		return name == "managedFields" && d.path[1].name == "metadata"
	}
	return false
}

// member compares a member of an object that raw has. had and has say whether the
// member is written before and after.
func (d *differ) member(name string, p *plan, was, is reflect.Value, had, has bool) error {
	if !had && !has {
		return nil
	}
	d.down(step{name: name, index: -1, node: d.raw().member(name)})
	defer d.up()
	inRaw := d.raw() != nil
	switch {
	case !inRaw && !has:
		return nil
	case !inRaw && had && p.form == structForm:
		return d.addChanged(p, was, is)
	case !inRaw && had:
		return d.set("add", p, was, is)
	case !inRaw:
		return d.add(p, is)
	case p.form == structForm && d.raw().isObject() && was.IsValid() && is.IsValid():
		// A struct that is omitted because it is zero is not removed: its unknown
		// fields stay.
		return d.value(p, was, is)
	case !has:
		d.emit("remove", nil)
		return nil
	case !had:
		return d.set("replace", p, reflect.Value{}, is)
	}
	return d.value(p, was, is)
}

func (d *differ) add(p *plan, is reflect.Value) error {
	return d.set("add", p, reflect.Value{}, is)
}

func (d *differ) replace(p *plan, was, is reflect.Value) error {
	return d.set("replace", p, was, is)
}

// set emits an operation that sets the current value, unless the value before, if
// there was one, has the same JSON.
func (d *differ) set(op string, p *plan, was, is reflect.Value) error {
	begin := d.buffer.Len()
	value, err := d.encode(p, is)
	if err != nil {
		return err
	}
	if was.IsValid() && p.form != leaf {
		end := d.buffer.Len()
		old, err := d.encode(p, was)
		if err != nil {
			return err
		}
		if bytes.Equal(old, value) {
			d.buffer.Truncate(begin)
			return nil
		}
		d.buffer.Truncate(end)
	}
	d.emit(op, value)
	return nil
}

// addChanged adds a struct that raw does not have, with the fields that changed alone:
// the zero values that the Go type writes for the others may be invalid, such as a null
// for a list that is required.
func (d *differ) addChanged(p *plan, was, is reflect.Value) error {
	begin := d.buffer.Len()
	if err := d.encodeChanged(p, was, is); err != nil {
		return err
	}
	if value := slices.Clip(d.buffer.Bytes()[begin:]); len(value) > len("{}") {
		d.emit("add", value)
	}
	return nil
}

// encodeChanged appends the JSON object of the fields that changed to the buffer.
func (d *differ) encodeChanged(p *plan, was, is reflect.Value) error {
	d.buffer.WriteByte('{')
	empty := d.buffer.Len()
	was, is = addressable(was), addressable(is)
	for _, f := range p.fields {
		before, had := f.of(was)
		after, has := f.of(is)
		if f.same(addressOf(was), addressOf(is)) || !has || f.omits(after) {
			continue
		}
		begin := d.buffer.Len()
		if begin > empty {
			d.buffer.WriteByte(',')
		}
		if _, err := d.encodeString(f.Name); err != nil {
			return err
		}
		d.buffer.WriteByte(':')
		changed, err := d.encodeField(f.plan, before, after, had)
		if err != nil {
			return err
		}
		if !changed {
			d.buffer.Truncate(begin)
		}
	}
	d.buffer.WriteByte('}')
	return nil
}

// encodeField appends the JSON of a field to the buffer, and reports whether it differs
// from that of the value before, if there was one.
func (d *differ) encodeField(p *plan, was, is reflect.Value, had bool) (changed bool, err error) {
	begin := d.buffer.Len()
	if had && p.form == structForm {
		err := d.encodeChanged(p, was, is)
		return d.buffer.Len()-begin > len("{}"), err
	}
	value, err := d.encode(p, is)
	if err != nil || !had {
		return true, err
	}
	end := d.buffer.Len()
	old, err := d.encode(p, was)
	changed = !bytes.Equal(old, value)
	d.buffer.Truncate(end)
	return changed, err
}

// encode returns the JSON of a value. It stays valid until the buffer is truncated,
// even if the buffer grows.
func (d *differ) encode(p *plan, v reflect.Value) ([]byte, error) {
	switch {
	case p.form == quoted:
		return d.encodeQuoted(p, v)
	case p.form == leaf && v.Kind() == reflect.String:
		return d.encodeString(v.String())
	}
	if v.CanAddr() {
		// This saves a copy, and uses the methods of the pointer as encoding/json
		// does.
		v = v.Addr()
	}
	return d.encodeAny(v.Interface())
}

func (d *differ) encodeAny(v any) ([]byte, error) {
	if d.encoder == nil {
		d.encoder = json.NewEncoder(&d.buffer)
		d.encoder.SetEscapeHTML(false)
	}
	begin := d.buffer.Len()
	if err := d.encoder.Encode(v); err != nil {
		return nil, err
	}
	d.buffer.Truncate(d.buffer.Len() - 1) // the newline of an Encoder
	return slices.Clip(d.buffer.Bytes()[begin:]), nil
}

// encodeString is encode for a string. Most need no escapes.
func (d *differ) encodeString(s string) ([]byte, error) {
	if !isPlain(s) {
		return d.encodeAny(s)
	}
	begin := d.buffer.Len()
	d.buffer.WriteByte('"')
	d.buffer.WriteString(s)
	d.buffer.WriteByte('"')
	return slices.Clip(d.buffer.Bytes()[begin:]), nil
}

// encodeQuoted encodes a field with the option "string".
func (d *differ) encodeQuoted(p *plan, v reflect.Value) ([]byte, error) {
	inner, err := d.encode(p.elem, v)
	if err != nil || string(inner) == "null" {
		return inner, err
	}
	return d.encodeString(string(inner))
}

func (d *differ) emit(op string, value []byte) {
	d.ops = append(d.ops, Operation{Op: op, Path: d.pointer(), Value: value})
}

// pointer returns the current path as a JSON pointer (RFC 6901).
func (d *differ) pointer() string {
	path := make([]byte, 0, 128)
	for _, s := range d.path[1:] {
		path = append(path, '/')
		if s.index >= 0 {
			path = strconv.AppendInt(path, int64(s.index), 10)
			continue
		}
		for i := range len(s.name) {
			switch c := s.name[i]; c {
			case '~':
				path = append(path, "~0"...)
			case '/':
				path = append(path, "~1"...)
			default:
				path = append(path, c)
			}
		}
	}
	return string(path)
}
