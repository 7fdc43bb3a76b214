package collector

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Cast writes the recording of a terminal as asciicast v3
// (https://docs.asciinema.org/manual/asciicast/v3/). Bytes that are not UTF-8 become
// U+FFFD there. Sums of streams become comments.
func Cast(ctx context.Context, from Storage, id string, to io.Writer) error {
	w := &cast{to: bufio.NewWriter(to)}
	if err := Frames(ctx, from, id, w.frame); err != nil {
		return err
	}
	if err := w.rest(); err != nil {
		return err
	}
	return w.to.Flush()
}

// cast writes frames as lines.
type cast struct {
	to   *bufio.Writer
	last time.Duration
	// halves are the beginnings of characters whose ends are in a later frame.
	halves [2][]byte
}

// castHeader is the first line.
type castHeader struct {
	Version   int      `json:"version"`
	Term      castTerm `json:"term"`
	Timestamp int64    `json:"timestamp"`
	Command   string   `json:"command,omitempty"`
}

type castTerm struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
	Type string `json:"type,omitempty"`
}

func (c *cast) frame(f *protocol.Frame) error {
	switch f.Type {
	case protocol.Begin:
		var head protocol.Head
		if err := json.Unmarshal(f.Data, &head); err != nil {
			return fmt.Errorf("frame %d: %w", f.Seq, err)
		}
		term := castTerm{Cols: head.Size.Cols, Rows: head.Size.Rows, Type: head.Term}
		if term.Cols == 0 || term.Rows == 0 {
			term.Cols, term.Rows = 80, 24
		}
		return c.line(castHeader{3, term, head.Time.Unix(), strings.Join(head.Command, " ")})
	case protocol.Output:
		return c.text(f, "o", 0)
	case protocol.Input:
		return c.text(f, "i", 1)
	case protocol.Resize:
		var size protocol.Size
		if err := json.Unmarshal(f.Data, &size); err != nil {
			return fmt.Errorf("frame %d: %w", f.Seq, err)
		}
		return c.event(f.At, "r", fmt.Sprintf("%dx%d", size.Cols, size.Rows))
	case protocol.Gap:
		return c.event(f.At, "m", "not recorded: "+string(f.Data))
	case protocol.Exit:
		var end protocol.End
		if err := json.Unmarshal(f.Data, &end); err != nil {
			return fmt.Errorf("frame %d: %w", f.Seq, err)
		}
		if err := c.rest(); err != nil {
			return err
		}
		return c.event(f.At, "x", strconv.Itoa(end.Code))
	case protocol.Stream, protocol.File:
		var line bytes.Buffer // a line of its own, whoever wrote it
		if err := json.Compact(&line, f.Data); err != nil {
			return fmt.Errorf("frame %d: %w", f.Seq, err)
		}
		_, err := fmt.Fprintf(c.to, "# %s\n", line.Bytes())
		return err
	}
	return nil
}

// text writes what was printed or typed, up to the last whole character.
func (c *cast) text(f *protocol.Frame, code string, which int) error {
	all := slices.Concat(c.halves[which], f.Data)
	whole := len(all) - halfCharacter(all)
	c.halves[which] = append([]byte(nil), all[whole:]...)
	if whole == 0 {
		return nil
	}
	return c.event(f.At, code, string(all[:whole]))
}

// rest writes what is left of characters that have no end.
func (c *cast) rest() error {
	for i, code := range []string{"o", "i"} {
		if half := c.halves[i]; len(half) > 0 {
			c.halves[i] = nil
			if err := c.event(c.last, code, string(half)); err != nil {
				return err
			}
		}
	}
	return nil
}

// event writes a line. Its time is that since the line before.
func (c *cast) event(at time.Duration, code, data string) error {
	interval := max(at-c.last, 0)
	c.last = max(c.last, at)
	return c.line([]any{json.Number(strconv.FormatFloat(interval.Seconds(), 'f', 6, 64)), code, strings.ToValidUTF8(data, "\uFFFD")})
}

func (c *cast) line(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = c.to.Write(append(text, '\n'))
	return err
}

// halfCharacter returns how many bytes at the end of text may be the beginning of a
// character.
func halfCharacter(text []byte) int {
	for n := 1; n <= min(len(text), utf8.UTFMax-1); n++ {
		if at := text[len(text)-n]; utf8.RuneStart(at) {
			if !utf8.FullRune(text[len(text)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
