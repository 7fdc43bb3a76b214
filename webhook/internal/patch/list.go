package patch

import (
	"reflect"
	"slices"
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
	return e.operations()
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
	alignment
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
	if e.elem.same(was, is) {
		return nil
	}
	e.down(step{index: at, node: e.list.item(e.begin + i)})
	defer e.up()
	if e.source[j] < 0 && e.keyed[j] {
		return e.set("replace", e.elem, reflect.Value{}, is)
	}
	return e.value(e.elem, was, is)
}

// move adds item j of after, which was item i of before, at a position. It does not
// use the operation move of JSON patch, because the Operation type of extensions has
// no field for from.
func (e *listEdit) move(i, j, at int) error {
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
	e.down(step{index: at})
	defer e.up()
	return e.set("add", e.elem, reflect.Value{}, e.is(j))
}
