package webhook

import (
	"encoding/json"
	"fmt"
)

// maxDepth is how deep JSON may nest, as for the API machinery's own decoder.
const maxDepth = 10_000

// scanner goes over JSON text once, and accepts exactly what encoding/json
// does. It copies nothing: what it returns are parts of the text. That the text
// is UTF-8 is for its caller to check.
type scanner struct {
	text  []byte
	at    int
	depth int
}

// value moves behind the next value and returns it.
func (s *scanner) value() ([]byte, error) {
	s.peek()
	start := s.at
	if err := s.skip(); err != nil {
		return nil, err
	}
	// Whoever appends to the value must not write over what follows it.
	return s.text[start:s.at:s.at], nil
}

// skip moves behind the next value.
func (s *scanner) skip() error {
	switch c := s.peek(); c {
	case '{':
		for member, err := s.open('}'); ; member, err = s.more('}') {
			if err != nil || !member {
				return err
			}
			if _, err := s.key(); err != nil {
				return err
			}
			if err := s.skip(); err != nil {
				return err
			}
		}
	case '[':
		for item, err := s.open(']'); ; item, err = s.more(']') {
			if err != nil || !item {
				return err
			}
			if err := s.skip(); err != nil {
				return err
			}
		}
	case '"':
		_, err := s.str()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		if c == '-' || isDigit(c) {
			return s.number()
		}
		return s.unexpected("a value")
	}
}

// peek moves to the next byte that is not white space and returns it, 0 at the
// end of the text.
func (s *scanner) peek() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// open enters the object or list at hand, and reports whether there is anything
// in it.
func (s *scanner) open(closing byte) (bool, error) {
	if s.depth++; s.depth > maxDepth {
		return false, fmt.Errorf("at byte %d: nested deeper than %d levels", s.at, maxDepth)
	}
	s.at++
	if s.peek() == closing {
		s.at++
		s.depth--
		return false, nil
	}
	return true, nil
}

// more moves behind the comma, or the end, that follows a member of an object
// or list, and reports whether another one follows.
func (s *scanner) more(closing byte) (bool, error) {
	switch s.peek() {
	case ',':
		s.at++
		return true, nil
	case closing:
		s.at++
		s.depth--
		return false, nil
	default:
		return false, s.unexpected("a comma or " + string(rune(closing)))
	}
}

// key moves behind a member's name and colon, and returns the name.
func (s *scanner) key() (quoted, error) {
	if s.peek() != '"' {
		return quoted{}, s.unexpected("the name of a field")
	}
	key, err := s.str()
	if err != nil {
		return quoted{}, err
	}
	if s.peek() != ':' {
		return quoted{}, s.unexpected("a colon")
	}
	s.at++
	return key, nil
}

// quoted is a JSON string: with its quotes, and whether any character in it is
// escaped.
type quoted struct {
	text    []byte
	escaped bool
}

// content returns the string without its quotes and escapes. If it has none, it
// is not copied.
func (q quoted) content() ([]byte, error) {
	if !q.escaped {
		return q.text[1 : len(q.text)-1], nil
	}
	var content string
	err := json.Unmarshal(q.text, &content)
	return []byte(content), err
}

// str moves behind the string at hand.
func (s *scanner) str() (quoted, error) {
	start, escaped := s.at, false
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return quoted{s.text[start:s.at], escaped}, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return quoted{}, err
			}
		case c < ' ':
			return quoted{}, s.unexpected("a character of a string")
		}
	}
	return quoted{}, s.unexpected("the end of a string")
}

// escape moves from a backslash to the last byte of the escape.
func (s *scanner) escape() error {
	if s.at++; s.at < len(s.text) {
		switch s.text[s.at] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			return nil
		case 'u':
			for range 4 {
				if s.at++; s.at >= len(s.text) || !isHex(s.text[s.at]) {
					return s.unexpected("a hexadecimal digit")
				}
			}
			return nil
		}
	}
	return s.unexpected("an escape")
}

func (s *scanner) number() error {
	if s.text[s.at] == '-' {
		s.at++
	}
	if s.at < len(s.text) && s.text[s.at] == '0' {
		s.at++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.at < len(s.text) && s.text[s.at] == '.' {
		s.at++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if s.at < len(s.text) && (s.text[s.at] == 'e' || s.text[s.at] == 'E') {
		s.at++
		if s.at < len(s.text) && (s.text[s.at] == '+' || s.text[s.at] == '-') {
			s.at++
		}
		return s.digits()
	}
	return nil
}

func (s *scanner) digits() error {
	start := s.at
	for s.at < len(s.text) && isDigit(s.text[s.at]) {
		s.at++
	}
	if s.at == start {
		return s.unexpected("a digit")
	}
	return nil
}

func (s *scanner) literal(word string) error {
	if end := s.at + len(word); end <= len(s.text) && string(s.text[s.at:end]) == word {
		s.at = end
		return nil
	}
	return s.unexpected("a value")
}

// end reports an error when anything follows.
func (s *scanner) end() error {
	if s.peek(); s.at < len(s.text) {
		return s.unexpected("the end")
	}
	return nil
}

func (s *scanner) unexpected(wanted string) error {
	if s.at >= len(s.text) {
		return fmt.Errorf("at byte %d: truncated; expected %s", s.at, wanted)
	}
	return fmt.Errorf("at byte %d: expected %s, found %q", s.at, wanted, s.text[s.at])
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
