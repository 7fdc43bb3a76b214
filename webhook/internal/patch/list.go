package patch

import (
	"bytes"
	"reflect"
	"slices"

	"github.com/admitkit/admitkit/internal/jsonpatch"
)

// items compares two lists that are not empty, at a path where raw has a list
// of as many items as before.
//
// An item is identified by its key if the list has one, otherwise by its content.
// An item that stays is compared with its old value. An item that moved is added
// from raw, so that it keeps its unknown fields. All others were changed in place,
// added or removed.
func (d *differ) items(p *plan, before, after reflect.Value) error {
	begin, end, newEnd := changedItems(p.elem, before, after)
	e := listEdit{differ: d, elem: p.elem, list: d.raw(), begin: begin, before: before, after: after}
	if err := e.align(p, end-begin, newEnd-begin); err != nil {
		return err
	}
	kept := after.Len() - len(e.source) + e.staying()
	if p.elem.form == leaf && max(len(e.source), len(e.stays))-e.staying() > 1 && 2*kept < after.Len() {
		// Most of the list is new, and scalars have no unknown fields to lose.
		return d.replace(p, before, after)
	}
	shifts := len(e.source) + len(e.stays) - 2*e.staying()
	if shifts*max(before.Len(), after.Len()) > maxShifts {
		return e.whole()
	}
	return e.operations()
}

// maxShifts bounds what the API server does to apply a patch. Its library shifts the
// rest of a list for each item that is added or removed: 20,000 removals from a list of
// 40,000 items took it eight seconds.
var maxShifts = 1 << 20 // tests have another one

// applied returns JSON after operations.
func applied(ops []Operation, text []byte) ([]byte, error) {
	if len(ops) == 1 && ops[0].Path == "" {
		return ops[0].Value, nil
	}
	decoded, err := jsonpatch.Decode(Append(nil, ops))
	if err != nil {
		return nil, err
	}
	return decoded.Apply(text)
}

// changedItems returns the range in which two lists differ: without their common
// items at the front and at the back.
func changedItems(elem *plan, before, after reflect.Value) (begin, end, newEnd int) {
	end, newEnd = before.Len(), after.Len()
	for begin < min(end, newEnd) && elem.same(before.Index(begin), after.Index(begin)) {
		begin++
	}
	if changed := end - begin; changed == 1 && newEnd == end {
		return begin, end, newEnd // seen above to be different
	}
	for min(end, newEnd) > begin && elem.same(before.Index(end-1), after.Index(newEnd-1)) {
		end--
		newEnd--
	}
	return begin, end, newEnd
}

// listEdit makes the operations for the part of a list that changed.
type listEdit struct {
	*differ
	elem          *plan
	list          *node // what raw has
	before, after reflect.Value
	begin         int    // the index at which the part begins
	keyed         []bool // of the items after: whether it has a key
	// items is set to make the items of the list instead of operations.
	items *[][]byte
	alignment
}

// whole replaces the list. Its items are what the operations would have made of them.
func (e *listEdit) whole() error {
	var items [][]byte
	e.items = &items
	keep := func(begin, end int) {
		for i := begin; i < end; i++ {
			items = append(items, e.list.item(i).value())
		}
	}
	keep(0, e.begin)
	if err := e.operations(); err != nil {
		return err
	}
	keep(e.begin+len(e.stays), e.before.Len())
	e.emit("replace", slices.Concat([]byte("["), bytes.Join(items, []byte(",")), []byte("]")))
	return nil
}

// make makes item j of after, of item i of before if that is not negative.
func (e *listEdit) make(i, j int) error {
	is := e.is(j)
	if i < 0 || e.list.item(e.begin+i) == nil {
		begin := e.buffer.Len()
		content, err := e.encode(e.elem, is)
		*e.items = append(*e.items, bytes.Clone(content))
		e.buffer.Truncate(begin)
		return err
	}
	item := e.list.item(e.begin + i)
	content := item.value()
	if was := e.was(i); !e.elem.same(was, is) {
		within := &differ{options: e.options, path: []step{{node: item}}}
		err := within.value(e.elem, was, is)
		if err == nil {
			content, err = applied(within.ops, content)
		}
		if err != nil {
			return err
		}
	}
	*e.items = append(*e.items, content)
	return nil
}

func (e *listEdit) was(i int) reflect.Value { return e.before.Index(e.begin + i) }
func (e *listEdit) is(j int) reflect.Value  { return e.after.Index(e.begin + j) }

func (e *listEdit) staying() int {
	n := 0
	for _, stays := range e.stays {
		if stays {
			n++
		}
	}
	return n
}

// operations goes through the list from front to back. Each operation applies to
// the list after all operations before it: at is the position in that list, and
// next is the item of before at that position.
func (e *listEdit) operations() error {
	next, at := 0, e.begin
	removeUntil := func(end int) {
		for ; next < end; next++ {
			if e.items != nil {
				continue
			}
			e.down(step{index: at})
			e.emit("remove", nil)
			e.up()
		}
	}
	for j := range e.source {
		var err error
		switch i := e.source[j]; {
		case i >= 0 && e.stays[i]:
			removeUntil(i)
			err = e.change(i, j, at)
			next++
		case i >= 0:
			err = e.move(i, j, at)
		default:
			for next < len(e.stays) && e.moves[next] {
				removeUntil(next + 1)
			}
			if next == len(e.stays) || e.stays[next] {
				err = e.insert(j, at)
				break
			}
			err = e.change(next, j, at)
			next++
		}
		if err != nil {
			return err
		}
		at++
	}
	removeUntil(len(e.stays))
	return nil
}

// change turns item i of before, which is now at a position, into item j of after.
func (e *listEdit) change(i, j, at int) error {
	was, is := e.was(i), e.is(j)
	isNew := e.source[j] < 0 && e.keyed[j]
	if e.items != nil {
		if isNew {
			i = -1
		}
		return e.make(i, j)
	}
	if e.elem.same(was, is) {
		return nil
	}
	e.down(step{index: at, node: e.list.item(e.begin + i)})
	defer e.up()
	if isNew {
		return e.set("replace", e.elem, reflect.Value{}, is)
	}
	return e.value(e.elem, was, is)
}

// move adds item j of after, which was item i of before, at a position. It does not
// use the operation move of JSON patch, because the Operation type of extensions has
// no field for from.
func (e *listEdit) move(i, j, at int) error {
	if e.items != nil {
		return e.make(i, j)
	}
	item := e.list.item(e.begin + i)
	if item == nil {
		return e.insert(j, at)
	}
	e.down(step{index: at, node: item})
	e.emit("add", slices.Clone(item.value()))
	e.up()
	return e.change(i, j, at)
}

func (e *listEdit) insert(j, at int) error {
	if e.items != nil {
		return e.make(-1, j)
	}
	e.down(step{index: at})
	defer e.up()
	return e.set("add", e.elem, reflect.Value{}, e.is(j))
}
