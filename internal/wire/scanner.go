package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep JSON may nest, as for the API machinery's own decoder.
const maxDepth = 10_000

// ErrTooDeep is the error of JSON that nests deeper.
var ErrTooDeep = fmt.Errorf("nested deeper than %d levels", maxDepth)

// Scanner reads JSON text once, from front to back, and accepts exactly what
// encoding/json accepts. It copies nothing: it returns parts of the text. The
// caller checks that the text is UTF-8.
type Scanner struct {
	text  []byte
	at    int
	depth int
	// unquoted is the content of the last string that had escapes.
	unquoted []byte
	// record gets the spans of what is skipped, if it is not nil.
	record *recorder
	// checked is the text itself, if it is known to be valid, else nil.
	checked *Text
}

// NewScanner returns a scanner at the beginning of a text.
func NewScanner(text []byte) Scanner { return Scanner{text: text} }

// Value moves past the next value and returns it.
func (s *Scanner) Value() ([]byte, error) {
	s.Peek()
	start := s.at
	if err := s.Skip(); err != nil {
		return nil, err
	}
	// An append to the value must not overwrite what follows it.
	return s.text[start:s.at:s.at], nil
}

// Rest returns the text that has not been read.
func (s *Scanner) Rest() []byte { return s.text[s.at:] }

// Position returns how much has been read.
func (s *Scanner) Position() int { return s.at }

// Text returns the text that read consumes, with the white space around it.
func (s *Scanner) Text(read func() error) ([]byte, error) {
	start := s.at
	err := read()
	return s.text[start:s.at], err
}

// Again moves past the next value if it is the given object, letter for letter,
// and reports whether it is.
func (s *Scanner) Again(object []byte) bool {
	if !bytes.HasSuffix(object, []byte("}")) || !bytes.HasPrefix(s.text[s.at:], object) {
		return false
	}
	s.at += len(object)
	return true
}

// Skip moves past the next value.
func (s *Scanner) Skip() error {
	if s.checked != nil {
		s.Pass()
		return nil
	}
	switch c := s.Peek(); c {
	case '{':
		return s.skipMembers('}')
	case '[':
		return s.skipMembers(']')
	case '"':
		return s.skipString()
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
		return s.Unexpected("a value")
	}
}

// skipMembers moves past an object or list.
func (s *Scanner) skipMembers(closing byte) error {
	place, members := 0, 0
	if s.record != nil {
		place = s.record.begin(s.at)
	}
	for member, err := s.Open(closing); ; member, err = s.More(closing) {
		if err != nil {
			return err
		}
		if !member {
			break
		}
		if closing == '}' {
			if err := s.skipKey(); err != nil {
				return err
			}
		}
		if err := s.Skip(); err != nil {
			return err
		}
		members++
	}
	if s.record != nil {
		s.record.end(place, s.at, members)
	}
	return nil
}

// skipKey is Key without the name.
func (s *Scanner) skipKey() error {
	if s.Peek() != '"' {
		return s.Unexpected("the name of a field")
	}
	if err := s.skipString(); err != nil {
		return err
	}
	if s.Peek() != ':' {
		return s.Unexpected("a colon")
	}
	s.at++
	return nil
}

func (s *Scanner) skipString() error {
	if end := plain(s.text, s.at+1); end < len(s.text) && s.text[end] == '"' {
		s.at = end + 1
		return nil
	}
	_, err := s.pastString()
	return err
}

// Pass moves past the next value without checking it, in half the time of Skip. It
// is for text that has been checked before.
func (s *Scanner) Pass() {
	if c := s.Peek(); s.checked != nil && (c == '{' || c == '[') {
		if span := s.checked.spanAt(s.at); span != nil {
			s.at = min(int(span.end), len(s.text))
			return
		}
	}
	for depth := 0; s.at < len(s.text); {
		switch s.text[s.at] {
		case '"':
			s.passString()
		case '{', '[':
			depth++
			s.at++
			continue
		case '}', ']':
			depth--
			s.at++
		case ',', ':', ' ', '\n', '\t', '\r':
			s.at++
			continue
		default:
			for s.at < len(s.text) && !delimits[s.text[s.at]] {
				s.at++
			}
		}
		if depth <= 0 {
			return
		}
	}
}

// delimits are the bytes that end a number or a literal.
var delimits = [256]bool{',': true, ':': true, '}': true, ']': true, ' ': true, '\n': true, '\t': true, '\r': true, '"': true, '{': true, '[': true}

func (s *Scanner) passString() {
	for s.at++; ; s.at += 2 { // a backslash, and what it escapes
		s.at = plain(s.text, min(s.at, len(s.text)))
		if s.at >= len(s.text) {
			return
		}
		if s.text[s.at] == '"' {
			s.at++
			return
		}
	}
}

// Peek moves to the next byte that is not white space and returns it, 0 at the
// end of the text.
func (s *Scanner) Peek() byte {
	if s.at < len(s.text) && s.text[s.at] > ' ' {
		return s.text[s.at] // what API servers write has no white space
	}
	return s.peekFar()
}

func (s *Scanner) peekFar() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// Open enters an object or list, and reports whether it has any members.
func (s *Scanner) Open(closing byte) (bool, error) {
	if s.depth++; s.depth > maxDepth {
		return false, fmt.Errorf("at byte %d: %w", s.at, ErrTooDeep)
	}
	s.at++
	if s.Peek() == closing {
		s.at++
		s.depth--
		return false, nil
	}
	return true, nil
}

// More moves past the comma or the closing bracket after a member of an object or
// list, and reports whether another member follows.
func (s *Scanner) More(closing byte) (bool, error) {
	switch s.Peek() {
	case ',':
		s.at++
		return true, nil
	case closing:
		s.at++
		s.depth--
		return false, nil
	default:
		return false, s.Unexpected("a comma or " + string(rune(closing)))
	}
}

// Key moves past a member's name and colon, and returns the name.
func (s *Scanner) Key() (Quoted, error) {
	if s.Peek() != '"' {
		return Quoted{}, s.Unexpected("the name of a field")
	}
	key, err := s.Quoted()
	if err != nil {
		return Quoted{}, err
	}
	if s.Peek() != ':' {
		return Quoted{}, s.Unexpected("a colon")
	}
	s.at++
	return key, nil
}

// Quoted is a JSON string with its quotes. escaped is true if it has an escape.
type Quoted struct {
	text    []byte
	escaped bool
}

// Size returns the bytes of the string as it is written, with quotes and escapes.
func (q Quoted) Size() int { return len(q.text) }

// Content returns the string without its quotes and escapes. Without escapes it is
// a part of the text; otherwise it is a buffer, which the next call overwrites.
func (s *Scanner) Content(q Quoted) ([]byte, error) {
	if !q.escaped {
		return q.text[1 : len(q.text)-1], nil
	}
	var err error
	if s.unquoted, err = jsontext.AppendUnquote(s.unquoted[:0], q.text); err != nil { // half a surrogate pair
		var content string
		err = json.Unmarshal(q.text, &content)
		s.unquoted = append(s.unquoted[:0], content...)
	}
	return s.unquoted, err
}

// Unquoted moves past a string and returns its content, as Quoted and Content do in
// two steps. Most escapes are of one character, such as a quote, or < and > and &,
// which API servers escape.
func (s *Scanner) Unquoted() ([]byte, error) {
	start := s.at + 1
	end := plain(s.text, start)
	if end < len(s.text) && s.text[end] == '"' {
		s.at = end + 1
		return s.text[start:end], nil
	}
	if s.unquoted == nil {
		s.unquoted = make([]byte, 0, 128)
	}
	s.unquoted = append(s.unquoted[:0], s.text[start:end]...)
	for end+1 < len(s.text) && s.text[end] == '\\' {
		if c := unescaped[s.text[end+1]]; c != 0 {
			s.unquoted = append(s.unquoted, c)
			end += 2
		} else if r := s.unicode(end); r >= 0 {
			s.unquoted = utf8.AppendRune(s.unquoted, r)
			end += 6
		} else {
			break
		}
		run := end
		end = plain(s.text, run)
		s.unquoted = append(s.unquoted, s.text[run:end]...)
	}
	if end < len(s.text) && s.text[end] == '"' {
		s.at = end + 1
		return s.unquoted, nil
	}
	quoted, err := s.Quoted() // which knows what is wrong
	if err != nil {
		return nil, err
	}
	return s.Content(quoted)
}

// unescaped has the meaning of what follows a backslash, 0 for none.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unicode returns the meaning of an escape such as \u003c, or -1 if it is none, or a
// surrogate, which means something only together with what follows.
func (s *Scanner) unicode(at int) rune {
	if at+6 > len(s.text) || s.text[at+1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range s.text[at+2 : at+6] {
		switch {
		case isDigit(c):
			c -= '0'
		case isHex(c):
			c = c&^0x20 - 'A' + 10 // in capitals
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	if utf16.IsSurrogate(r) {
		return -1
	}
	return r
}

// Quoted moves past a string and returns it.
func (s *Scanner) Quoted() (Quoted, error) {
	start := s.at
	if end := plain(s.text, start+1); end < len(s.text) && s.text[end] == '"' {
		s.at = end + 1
		return Quoted{text: s.text[start:s.at]}, nil
	}
	escaped, err := s.pastString()
	return Quoted{s.text[start:s.at], escaped}, err
}

// pastString moves past a string, and reports whether it has an escape.
func (s *Scanner) pastString() (escaped bool, err error) {
	for s.at++; ; {
		s.at = plain(s.text, s.at)
		if s.at >= len(s.text) {
			return escaped, s.Unexpected("the end of a string")
		}
		switch s.text[s.at] {
		case '"':
			s.at++
			return escaped, nil
		case '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return escaped, err
			}
		default:
			return escaped, s.Unexpected("a character of a string")
		}
	}
}

// plain returns the position, from at on, of the first byte that is special in a
// string: a quote, a backslash or a control character. It looks at eight bytes at a
// time, as in Hacker's Delight, section 6-1: the lowest bit that is set in found
// belongs to the first special byte.
func plain(text []byte, at int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; at+8 <= len(text); at += 8 {
		word := binary.LittleEndian.Uint64(text[at:])
		quotes, slashes := word^(ones*'"'), word^(ones*'\\')
		found := ((quotes-ones)&^quotes | (slashes-ones)&^slashes | (word-ones*' ')&^word) & highs
		if found != 0 {
			return at + bits.TrailingZeros64(found)/8
		}
	}
	for ; at < len(text); at++ {
		if c := text[at]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	return at
}

// escape moves past an escape.
func (s *Scanner) escape() error {
	if s.at++; s.at >= len(s.text) || s.text[s.at] != 'u' && unescaped[s.text[s.at]] == 0 {
		return s.Unexpected("an escape")
	}
	digits := 0
	if s.text[s.at] == 'u' {
		digits = 4
	}
	for s.at++; digits > 0; digits-- {
		if s.at >= len(s.text) || !isHex(s.text[s.at]) {
			return s.Unexpected("a hexadecimal digit")
		}
		s.at++
	}
	return nil
}

func (s *Scanner) number() error {
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

func (s *Scanner) digits() error {
	start := s.at
	for s.at < len(s.text) && isDigit(s.text[s.at]) {
		s.at++
	}
	if s.at == start {
		return s.Unexpected("a digit")
	}
	return nil
}

func (s *Scanner) literal(word string) error {
	if end := s.at + len(word); end <= len(s.text) && string(s.text[s.at:end]) == word {
		s.at = end
		return nil
	}
	return s.Unexpected("a value")
}

// End returns an error if anything but white space follows.
func (s *Scanner) End() error {
	if s.Peek(); s.at < len(s.text) {
		return s.Unexpected("the end")
	}
	return nil
}

// Unexpected returns the error that something else was wanted here.
func (s *Scanner) Unexpected(wanted string) error {
	if s.at >= len(s.text) {
		return fmt.Errorf("at byte %d: truncated; expected %s", s.at, wanted)
	}
	return fmt.Errorf("at byte %d: expected %s, found %q", s.at, wanted, s.text[s.at])
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
