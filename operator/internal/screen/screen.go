// Package screen makes plain lines of what a terminal printed.
package screen

import "strings"

// MaxLine is the most bytes of a line. A longer one goes on in the next, which begins with
// the end of the one before.
const MaxLine = 4 << 10

// Text takes the escape sequences out of what a terminal printed, wherever they are cut into
// pieces. A backspace takes the character before it away, so that what somebody typed and
// corrected is as it became. It does not move a cursor: what a full-screen program drew is in
// the order in which it drew it.
type Text struct {
	// Line is called with each line, without its end.
	Line func(string)
	// Overlap is how many bytes of a line that is too long the next one has, too.
	Overlap int

	line  []byte
	state state
}

type state byte

const (
	plain state = iota
	escape
	// control is a sequence that begins with ESC [.
	control
	// command is a string, as in ESC ], which ends with BEL or ESC \.
	command
	// charset is ESC ( and so on: one more byte.
	charset
)

// Write takes what was printed next.
func (t *Text) Write(text []byte) {
	for _, b := range text {
		t.take(b)
	}
}

// Flush ends the last line.
func (t *Text) Flush() {
	if len(t.line) > 0 {
		t.end(0)
	}
}

func (t *Text) take(b byte) {
	switch b {
	case 0x1b: // begins a sequence, also within another
		t.state = escape
		return
	case 0x18, 0x1a: // end any
		t.state = plain
		return
	}
	switch t.state {
	case escape:
		t.state = afterEscape(b)
	case charset:
		t.state = plain
	case control:
		if b >= 0x40 && b <= 0x7e || b == '\n' {
			t.state = plain
		}
	case command:
		if b == 0x07 {
			t.state = plain
		}
	default:
		t.print(b)
	}
}

func afterEscape(b byte) state {
	switch b {
	case '[':
		return control
	case ']', 'P', 'X', '^', '_':
		return command
	case '(', ')', '*', '+', '#', '%', ' ':
		return charset
	}
	return plain
}

func (t *Text) print(b byte) {
	switch {
	case b == '\n', b == '\r':
		if len(t.line) > 0 {
			t.end(0)
		}
	case b == '\b' || b == 0x7f:
		for len(t.line) > 0 {
			last := t.line[len(t.line)-1]
			t.line = t.line[:len(t.line)-1]
			if last&0xc0 != 0x80 { // the first byte of a character
				break
			}
		}
	case b < ' ' && b != '\t':
	default:
		if t.line = append(t.line, b); len(t.line) >= MaxLine {
			t.end(min(t.Overlap, MaxLine/2))
		}
	}
}

func (t *Text) end(keep int) {
	t.Line(strings.ToValidUTF8(string(t.line), "\uFFFD"))
	t.line = append(t.line[:0], t.line[len(t.line)-keep:]...)
}
