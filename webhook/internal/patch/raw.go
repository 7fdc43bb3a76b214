package patch

import (
	"github.com/admitkit/admitkit/internal/wire"
)

// node is a value in a JSON document. It looks for its members and items when they
// are needed, and continues where the last search stopped. The document has been
// decoded before, so it is valid; if it is not, nodes have fewer members.
type node struct {
	text  *wire.Text
	at    int // where the value begins in the text
	found []child
	index map[string]int // of the keys of found, once they are many
	ended bool           // found is all there is
}

// child is a member of an object or an item of an array.
type child struct {
	key  []byte
	at   int   // where its value begins in the text
	node *node // nil until it is needed
}

// manyKeys is the number of keys from which an index is faster than a search.
const manyKeys = 16

// tree is a document and its root.
type tree struct {
	text wire.Text
	root node
}

func treeOf(text wire.Text) *tree {
	t := &tree{text: text}
	s := t.text.Scanner(0)
	s.Peek()
	t.root = node{text: &t.text, at: s.Position()}
	return t
}

func (n *node) is(first byte) bool {
	return n != nil && n.at < len(n.text.Raw) && n.text.Raw[n.at] == first
}
func (n *node) isObject() bool { return n.is('{') }
func (n *node) isArray() bool  { return n.is('[') }

// value returns the value's own text.
func (n *node) value() []byte {
	s := n.text.Scanner(n.at)
	s.Pass()
	return n.text.Raw[n.at:s.Position()]
}

// member returns the member of an object, nil if there is none.
func (n *node) member(key string) *node {
	if n.index != nil {
		if i, found := n.index[key]; found {
			return n.child(i)
		}
	} else {
		for i := range n.found {
			if string(n.found[i].key) == key {
				return n.child(i)
			}
		}
	}
	for n.advance('}') {
		last := len(n.found) - 1
		n.note(last)
		if string(n.found[last].key) == key {
			return n.child(last)
		}
	}
	return nil
}

// item returns an item of an array, nil if there is none.
func (n *node) item(i int) *node {
	for i >= len(n.found) {
		if !n.advance(']') {
			return nil
		}
	}
	return n.child(i)
}

func (n *node) child(i int) *node {
	c := &n.found[i]
	if c.node == nil {
		c.node = &node{text: n.text, at: c.at}
	}
	return c.node
}

// note keeps the index up to date, once there are enough keys for one.
func (n *node) note(last int) {
	switch {
	case n.index != nil:
		n.index[string(n.found[last].key)] = last
	case last == manyKeys:
		n.index = make(map[string]int, 4*manyKeys)
		for i := range n.found {
			n.index[string(n.found[i].key)] = i
		}
	}
}

// advance finds the next member or item.
func (n *node) advance(closing byte) bool {
	if n.ended {
		return false
	}
	c, found := n.scan(closing)
	if n.ended = !found; found {
		n.found = append(n.found, c)
	}
	return found
}

// scan returns the child that follows the last one, if one does.
func (n *node) scan(closing byte) (c child, found bool) {
	s, err := n.text.Scanner(n.at), error(nil)
	if n.found == nil {
		n.found = make([]child, 0, 8)
		found, err = s.Open(closing)
	} else {
		s = n.text.Scanner(n.found[len(n.found)-1].at)
		s.Pass()
		found, err = s.More(closing)
	}
	if found && closing == '}' {
		// API servers escape <, > and & in names.
		var key wire.Quoted
		if key, err = s.Key(); err == nil {
			c.key, err = s.Content(key)
		}
	}
	s.Peek()
	c.at = s.Position()
	return c, found && err == nil
}
