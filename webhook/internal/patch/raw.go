package patch

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
)

// node is a value in a JSON document. It looks for its members and items only
// when asked, and then no further than needed; a second question goes on where
// the first one stopped. The document is JSON that has been decoded already;
// one that is cut off or malformed has fewer members, and never panics.
type node struct {
	text  []byte // from the value to the end of the document
	found []child
	index map[string]int // of the keys of found, once they are many
	ended bool           // found is all there is
}

// child is a member of an object or an item of an array.
type child struct {
	key  []byte
	at   int   // where its value begins in the parent's text
	node *node // nil until somebody asks
}

// manyKeys is from where on an index is faster than comparing one by one.
const manyKeys = 16

func document(raw []byte) *node { return &node{text: raw[skipSpace(raw, 0):]} }

func (n *node) is(first byte) bool { return n != nil && len(n.text) > 0 && n.text[0] == first }
func (n *node) isObject() bool     { return n.is('{') }
func (n *node) isArray() bool      { return n.is('[') }

// value returns the value's own text.
func (n *node) value() []byte { return n.text[:skipValue(n.text, 0)] }

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
	for n.advance(true) {
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
		if !n.advance(false) {
			return nil
		}
	}
	return n.child(i)
}

func (n *node) child(i int) *node {
	c := &n.found[i]
	if c.node == nil {
		c.node = &node{text: n.text[c.at:]}
	}
	return c.node
}

// note keeps the index, if there are enough keys for one.
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
func (n *node) advance(keyed bool) bool {
	if n.ended {
		return false
	}
	n.ended = true // until the next one is found
	at := 1        // behind the bracket
	if len(n.found) > 0 {
		at = skipSpace(n.text, skipValue(n.text, n.found[len(n.found)-1].at))
		if at >= len(n.text) || n.text[at] != ',' {
			return false
		}
		at++
	} else {
		n.found = make([]child, 0, 8)
	}
	at = skipSpace(n.text, at)
	if at >= len(n.text) || n.text[at] == '}' || n.text[at] == ']' {
		return false
	}
	var key []byte
	if keyed {
		end := skipString(n.text, at)
		key = unquote(n.text[at:end])
		at = skipSpace(n.text, end)
		if key == nil || at >= len(n.text) || n.text[at] != ':' {
			return false
		}
		at = skipSpace(n.text, at+1)
	}
	n.found = append(n.found, child{key: key, at: at})
	n.ended = false
	return true
}

// unquote returns what a JSON string stands for, nil if it is none.
// encoding/json escapes < > & in keys, and so does the API server.
func unquote(quoted []byte) []byte {
	if len(quoted) < 2 || quoted[0] != '"' {
		return nil
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil
	}
	return []byte(s)
}

func skipSpace(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r') {
		at++
	}
	return at
}

// skipString returns where the string at at ends. It looks at eight bytes at a
// time: most of what is skipped is strings, and most of these are short.
func skipString(text []byte, at int) int {
	for at++; at+8 <= len(text); {
		word := binary.LittleEndian.Uint64(text[at:])
		found := bytesEqual(word, '"') | bytesEqual(word, '\\')
		if found == 0 {
			at += 8
			continue
		}
		at += bits.TrailingZeros64(found) / 8
		if text[at] == '"' {
			return at + 1
		}
		at += 2 // the backslash, and what it escapes
	}
	for ; at < len(text); at++ {
		switch text[at] {
		case '"':
			return at + 1
		case '\\':
			at++
		}
	}
	return len(text)
}

// bytesEqual returns a word of which the lowest bit that is set is the highest
// of the first byte that is c, none if no byte is.
func bytesEqual(word uint64, c byte) uint64 {
	const ones = 0x0101010101010101
	word ^= ones * uint64(c)
	return (word - ones) &^ word & (ones << 7)
}

// skipValue returns where the value at at ends.
func skipValue(text []byte, at int) int {
	for depth := 0; at < len(text); {
		switch text[at] {
		case '"':
			at = skipString(text, at)
		case '{', '[':
			depth++
			at++
			continue
		case '}', ']':
			depth--
			at++
		case ',', ':', ' ', '\n', '\t', '\r':
			at++
			continue
		default:
			for at < len(text) && !delimits[text[at]] {
				at++
			}
		}
		if depth <= 0 {
			return at
		}
	}
	return len(text)
}

// delimits are the bytes that end a number or a literal.
var delimits = [256]bool{',': true, ':': true, '}': true, ']': true, ' ': true, '\n': true, '\t': true, '\r': true, '"': true, '{': true, '[': true}
