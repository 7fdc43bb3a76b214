package wire

import "strings"

// Names are the names that the members of an object may have. Their order is that
// in which API servers write them: the order of the fields of a Go struct.
type Names struct {
	index map[string]int
	// quoted has the names with quotes and colon, as they appear in the text.
	quoted []string
}

// near is how many names, from the expected one on, are tried one by one. Fields
// that are omitted when they are empty are usually missing.
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

// Name moves past a member's name and colon, and returns the index of the name, or
// -1 for an unknown one. next is the index expected: one more than the last.
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
