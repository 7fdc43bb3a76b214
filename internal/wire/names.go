package wire

import "strings"

// Names are the names that the members of an object may have, in the order in
// which API servers write them, which is that of the fields of a Go struct.
type Names struct {
	index map[string]int
	// quoted are the names with quotes and colon, as they stand in the text.
	quoted []string
}

// near is how many names from the expected one on are tried one by one. What a
// struct omits when it is empty is mostly not there.
const near = 8

// NewNames returns the set of these names.
func NewNames(names ...string) *Names {
	n := &Names{index: make(map[string]int, len(names)), quoted: make([]string, len(names))}
	for i, name := range names {
		n.index[name] = i
		if plain([]byte(name), 0) == len(name) && !strings.ContainsAny(name, `"\`) {
			n.quoted[i] = `"` + name + `":`
		}
	}
	return n
}

// Name moves behind a member's name and colon, and returns which of the names it
// is, or -1. next is where it is expected: behind the one before.
func (s *Scanner) Name(names *Names, next int) (int, error) {
	rest := s.text[s.at:]
	for i := next; i < min(next+near, len(names.quoted)); i++ {
		if name := names.quoted[i]; name != "" && len(rest) > len(name) && string(rest[:len(name)]) == name {
			s.at += len(name)
			return i, nil
		}
	}
	key, err := s.Key()
	if err != nil {
		return -1, err
	}
	content, err := s.Content(key)
	if err != nil {
		return -1, err
	}
	if i, found := names.index[string(content)]; found {
		return i, nil
	}
	return -1, nil
}
