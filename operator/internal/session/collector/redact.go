package collector

import (
	"encoding/json"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Redactor takes secrets out of what is recorded. The same input must give the same output,
// since a frame may arrive twice.
type Redactor interface {
	// Text returns what was printed or typed, a piece as it arrived, without its secrets. It
	// may be in the middle of a character, a word or a line.
	Text(text string) string
	// Command returns a command and its arguments without their secrets. It does not change
	// the slice that it is given.
	Command(command []string) []string
}

// redacted takes secrets out of a frame before it is stored. That it has the command of its
// ticket was checked before.
func (c *Collector) redacted(f *protocol.Frame) {
	if c.options.Redact == nil {
		return
	}
	switch f.Type {
	case protocol.Output, protocol.Input:
		f.Data = []byte(c.options.Redact.Text(string(f.Data)))
	case protocol.Begin:
		var head protocol.Head
		if json.Unmarshal(f.Data, &head) != nil {
			return // who reads it says so
		}
		head.Command = c.options.Redact.Command(head.Command)
		if text, err := json.Marshal(head); err == nil {
			f.Data = text
		}
	}
	if len(f.Data) > protocol.MaxData { // what stands for a secret may be longer than it was
		f.Data = append(f.Data[:protocol.MaxData-len(cutMark)], cutMark...)
	}
}

// cutMark says in a recording that the rest of a piece is missing.
const cutMark = "[the rest is missing]"
